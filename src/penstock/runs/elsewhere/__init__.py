"""Runs on the nodes of a Ray cluster or of Slurm, recorded here as if they ran here."""
