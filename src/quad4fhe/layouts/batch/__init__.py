"""Layout batch: one slot per sample, no evaluation keys."""
