"""Read and write files, and read samples from arrays and files."""
