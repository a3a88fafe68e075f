"""The store: all runs, how they ended, and what was measured of each."""

from penstock.runs.store.points import Series, SeriesWriter, points_file
from penstock.runs.store.store import Store

__all__ = ["Series", "SeriesWriter", "Store", "points_file"]
