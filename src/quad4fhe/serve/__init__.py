"""Encrypted inference over HTTP: a server that sees only ciphertexts, and its client."""
