"""Fingerprints of code and data, so that a trainer never joins a feed of other ones."""
