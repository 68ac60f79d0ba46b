"""Encrypted inference with SEAL: keys, ciphertexts, messages, and the client and server that exchange them."""
