"""Layout packed: one sample spread over the slots of a ciphertext, with rotations."""
