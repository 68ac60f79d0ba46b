"""Calibration data in shards, and the statistics that fitting asks of them."""
