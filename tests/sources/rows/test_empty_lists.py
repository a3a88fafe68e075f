"""Empty lists have no type of their own."""

from __future__ import annotations

import numpy as np

from penstock.sources.rows.recipe import RowLeaf


def test_an_empty_list_fits_a_column_of_any_numbers():
    leaf = RowLeaf("tokens", "list", "<i8")
    assert leaf.checked([]).dtype == np.int64 and not len(leaf.checked([]))
    assert RowLeaf("boxes", "list", "<i8", (4,)).checked([]).shape == (0, 4)
