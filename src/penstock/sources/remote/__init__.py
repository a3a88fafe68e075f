"""Blocks that the machines of a Ray cluster make: how fast a feed is, and nothing else, depends on them."""
