"""Compares methods of selection by what they cost and what they bring: ``penstock select bench``."""
