"""The circuit in the clear: folding, bounds, planning, simulation. No cryptography is imported here."""
