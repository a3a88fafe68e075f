"""Feeds that have parted from one another are known by their names."""

from __future__ import annotations

import os

import pytest

from penstock.feed.suffix import parted_name, root_of


@pytest.mark.parametrize("root", ["a", "a-pace-b", "pace-1.1", "ä b", "x" * 900])
def test_a_parted_feed_is_named_for_its_root_and_who_parts_from_it_too(root: str) -> None:
    name = parted_name(root, 3)
    assert name == f"{root}-pace-{os.getpid()}.3"
    assert root_of(name) == root_of(root) == root
    assert root_of(parted_name(root_of(name), 4)) == root
