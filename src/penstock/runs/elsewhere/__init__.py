"""Runs on the nodes of a Ray cluster or of Slurm, recorded here as if they ran here."""

NODE = "penstock.runs.elsewhere.node"
PART_BYTES = 1 << 18
"""Most bytes that are read, or sent, at once."""
