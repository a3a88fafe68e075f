"""Packed data sets: rows of one size in plain files, read straight into the ring."""

from penstock.sources.packed.checksums import check
from penstock.sources.packed.source import PackedSource
from penstock.sources.packed.writing import pack, rows_begun

__all__ = ["PackedSource", "check", "pack", "rows_begun"]
