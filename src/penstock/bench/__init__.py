"""Measurements of what Penstock claims, which anyone can repeat: ``penstock bench``."""
