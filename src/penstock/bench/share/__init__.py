"""Measures what sharing a user's own loader brings on this machine."""
