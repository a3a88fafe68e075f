"""Whatever one thing is changed, the name is another; in every process it is the same."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fingerprint import fuzz

from penstock.fingerprint.objects import fingerprint_of_objects, small_state

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
HASHABLE = st.recursive(
    PLAIN, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=4), max_leaves=4
)
TREES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, min_size=65, max_size=66)
        | st.tuples(inner)
        | st.dictionaries(HASHABLE, inner, max_size=4)
        | st.sets(HASHABLE, max_size=4)
    ),
    max_leaves=8,
)


def said(thing: Any) -> str:
    """Say a tree in full, types and all."""
    kind = type(thing).__name__
    if isinstance(thing, (list, tuple)):
        return f"{kind}[{','.join(map(said, thing))}]"
    if isinstance(thing, (set, frozenset)):
        return f"{kind}[{','.join(sorted(map(said, thing)))}]"
    if isinstance(thing, dict):
        return f"{kind}[{','.join(said(item) for item in thing.items())}]"
    return f"{kind} {thing!r}"


@given(one=TREES, other=TREES)
def test_trees_have_one_name_if_and_only_if_they_are_said_alike(one: Any, other: Any) -> None:
    names = [fingerprint_of_objects({"dataset": tree}).digest for tree in (one, other)]
    assert (names[0] == names[1]) == (said(one) == said(other))


def check_changes(seeds: range) -> None:
    wrong: list[str] = []
    for seed in seeds:
        drawn = fuzz.Drawn(seed)
        name, small = fuzz.name_of(drawn), small_state({"dataset": drawn.root})
        if small != small_state({"dataset": drawn.root}):
            wrong.append(f"{seed}: the small state is not stable")
        if name != fuzz.name_of(fuzz.Drawn(seed)):
            wrong.append(f"{seed}: equal things have different names")
        drawn.change()
        if name == fuzz.name_of(drawn):
            wrong.append(f"{seed}: changed things have one name")
    assert wrong == []


def check_another_process(seeds: int) -> None:
    """That of another salt of Python's hashes has the names that this one has."""
    told = subprocess.run(
        [sys.executable, "-c", f"from tests.fingerprint import fuzz; print(fuzz.digest_of_names({seeds}))"],
        env={**os.environ, "PYTHONHASHSEED": "4242", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert told == f"{fuzz.digest_of_names(seeds)}\n"


def test_one_change_anywhere_is_another_name() -> None:
    check_changes(range(100))


def test_things_have_one_name_in_every_process() -> None:
    check_another_process(50)


@pytest.mark.soak
@pytest.mark.timeout(1000)
def test_ten_thousand_changes_are_ten_thousand_other_names() -> None:
    check_changes(range(100, 10_100))


@pytest.mark.soak
@pytest.mark.timeout(1000)
def test_ten_thousand_things_have_one_name_in_every_process() -> None:
    check_another_process(10_000)
