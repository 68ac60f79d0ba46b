"""The tables of RESULTS.md, made from finished runs alone: same files, same bytes."""
