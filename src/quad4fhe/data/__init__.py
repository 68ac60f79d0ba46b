"""Samples from outside: files of the user's own."""
