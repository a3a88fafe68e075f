"""Samples with named columns as a source: dicts of arrays, of tables and of records."""
