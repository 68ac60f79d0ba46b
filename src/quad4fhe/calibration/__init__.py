"""Calibration data in shards, and the statistics that fitting computes from them."""
