"""The data sets of the paper: which there are, where they come from, and how their files are read."""
