"""Layout batch: one slot per sample."""
