"""The commands that this package adds to `quad4fhe`, found by their entry points. Each parses, calls and prints."""
