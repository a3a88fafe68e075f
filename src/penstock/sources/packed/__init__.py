"""Packed data sets: rows of one size in plain files, read straight into the ring."""

from penstock.sources.packed.checksums import check
from penstock.sources.packed.source import PackedSource

__all__ = ["PackedSource", "check"]
