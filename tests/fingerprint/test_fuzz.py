"""Whatever one thing is changed, the name is another; in every process it is the same."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fingerprint import fuzz
from tests.scripts import run_python

from penstock.fingerprint.objects import fingerprint_of_objects, small_state

pytestmark = pytest.mark.whole

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
HASHABLE = st.recursive(PLAIN, lambda x: st.tuples(x, x) | st.frozensets(x, max_size=4), max_leaves=4)
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


@settings(max_examples=examples(40))
@given(one=TREES, other=TREES)
def test_trees_have_one_name_if_and_only_if_they_are_said_alike(one: Any, other: Any) -> None:
    names = [fingerprint_of_objects({"dataset": tree}).digest for tree in (one, other)]
    assert (names[0] == names[1]) == (said(one) == said(other))


TEN_THOUSAND = pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(1000)])


@pytest.mark.parametrize("seeds", [30, TEN_THOUSAND])
def test_one_change_anywhere_is_another_name(seeds: int) -> None:
    wrong: list[str] = []
    for seed in range(seeds):
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


@pytest.mark.parametrize("seeds", [20, TEN_THOUSAND])
def test_things_have_one_name_in_every_process(seeds: int) -> None:
    """That of another salt of Python's hashes has the names that this one has."""
    text = f"from tests.fingerprint import fuzz; print(fuzz.digest_of_names({seeds}))"
    env = {**os.environ, "PYTHONHASHSEED": "4242", "PYTHONPATH": os.pathsep.join(sys.path)}
    assert run_python("-c", text, timeout=900, env=env).stdout == f"{fuzz.digest_of_names(seeds)}\n"
