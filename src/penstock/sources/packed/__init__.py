"""Packed data sets: rows of one size in plain files, read straight into the ring."""
