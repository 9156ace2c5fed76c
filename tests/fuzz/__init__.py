"""Fuzzing of what a node reads from its peers: request frames, and the records of internal topics."""
