"""Starts runs, each below a keeper, waits for them, and shows what they print."""
