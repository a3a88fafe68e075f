"""Subsets of a data set: which samples, and a sampler that gives them."""
