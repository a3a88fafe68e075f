"""Keys decide alike everywhere who keeps what."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.io.cache.keys import hash64, keys_of, owners, parts_of

NAMES = st.text(st.characters(min_codepoint=33, exclude_categories=["Cs"]), min_size=1, max_size=8)
KEYS = keys_of([hash64(f"/data/{i}.jpg") for i in range(20_000)], [0] * 20_000, [0] * 20_000)


def test_keys_are_the_same_on_every_machine() -> None:
    assert hash64("/data/0.jpg") == 2671161672339542296
    assert keys_of([hash64("/data/0.jpg")], [512], [9]).tolist() == [8308956836543139899]


def test_parts_are_spread_evenly() -> None:
    parts = parts_of(KEYS)
    assert 0 <= parts.min() <= parts.max() < 1
    for part in (0.1, 0.5, 0.9):
        assert abs((parts < part).mean() - part) < 0.015
        # Whatever the order of the files, no stretch of them is left out.
        assert abs((parts[:2000] < part).mean() - part) < 0.05


@given(nodes=st.lists(NAMES, min_size=1, max_size=6, unique=True), extra=NAMES)
def test_one_more_node_takes_its_share_and_moves_nothing_else(nodes: list[str], extra: str) -> None:
    if extra in nodes:
        return
    before = np.array(nodes)[owners(KEYS, nodes)]
    grown = [*nodes, extra]
    after = np.array(grown)[owners(KEYS, grown)]
    moved = before != after
    assert (after[moved] == extra).all()
    assert abs(moved.mean() - 1 / len(grown)) < 0.02


def test_owners_do_not_depend_on_the_parts_that_are_kept() -> None:
    kept = KEYS[parts_of(KEYS) < 0.3]
    counts = np.bincount(owners(kept, ["a", "b", "c"]))
    assert (abs(counts / len(kept) - 1 / 3) < 0.03).all()
