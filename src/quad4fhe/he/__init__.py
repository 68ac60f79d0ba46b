"""The circuit under encryption: SEAL's keys and ciphertexts, and the arithmetic on their residues."""
