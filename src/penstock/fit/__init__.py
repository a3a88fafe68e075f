"""Fits a script to the machine: which batch size, how many workers, how many trainings at once, by trial."""
