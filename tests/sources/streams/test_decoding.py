"""A block that is made all at once is the block that row by row would be; what differs is left to that."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from penstock.errors import SourceError
from penstock.io.cache.admission import Admitted
from penstock.sources.order import Planned
from penstock.sources.rows.recipe import RowRecipe, RowStep, VaryingLeaves, example_of
from penstock.sources.samples.worker import BlockPart, BlockShape, SampleTask
from penstock.sources.streams.decoding import StreamRecipe, StreamStep
from penstock.sources.streams.memory import CycleMemory

FIRST = {"user": 1, "price": 0.5, "clicked": True, "no identifier": "dk", "at": [1.5, 2.0], "class": 7}
WHOLE = st.integers(-(2**63), 2**63 - 1)
NUMBER = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)
FITS = st.fixed_dictionaries(
    {
        "user": WHOLE,
        "price": NUMBER,
        "clicked": st.booleans(),
        "no identifier": st.text(st.characters(exclude_categories=["Cs"])),
        "at": st.lists(NUMBER, min_size=2, max_size=2),
        "class": WHOLE,
    }
)
ANYTHING = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | NUMBER | st.text("ab") | st.lists(NUMBER)
ODD = st.dictionaries(st.sampled_from([*FIRST, "other"]), ANYTHING)


def made(records: list[bytes], step: Callable[[BlockPart], Any], recipe: RowRecipe) -> dict[str, Any]:
    """Return the leaves of a block of records."""
    memory = CycleMemory()
    samples, rows = memory.filled(records), len(records)
    shape = BlockShape.of(example_of(recipe.leaves))
    arrays = shape.arrays_in(np.full(shape.placed(rows).nbytes, 99, np.uint8), rows)
    plan = Planned(0, rows, np.arange(rows), None)
    task = SampleTask(plan, (0, rows), 0, 0, 0, rows, 0, samples, False, "", Admitted(0, 0))
    steps = step(BlockPart(task, arrays, recipe, None))
    try:
        while True:
            next(steps)
    except StopIteration as done:
        found: VaryingLeaves = done.value
    fixed = zip(example_of(recipe.leaves), (array.copy() for array in arrays), strict=True)
    return {**dict(fixed), **dict(found.given(recipe.ragged))}


def outcome(records: list[bytes], step: Callable[[BlockPart], Any], recipe: RowRecipe) -> Any:
    try:
        leaves = made(records, step, recipe)
    except SourceError as error:
        return str(error)
    return {name: leaf.tolist() if isinstance(leaf, np.ndarray) else leaf for name, leaf in leaves.items()}


def renamed(record: dict[str, Any], name: str) -> dict[str, Any]:
    return {name if each == "class" else each: value for each, value in record.items()}


def recipe_of(decode: Callable[[bytes], Any] | None, *, skips: bool, renamed_to: str = "class") -> RowRecipe:
    first = json.dumps(renamed(FIRST, renamed_to)).encode()
    return StreamRecipe(decode, "refuse", skips, "clicks").of_first([("record 0", lambda: first)], "clicks")


class RowByRow(StreamStep):
    def __call__(self, part: BlockPart) -> Any:
        return RowStep.__call__(self, part)


NAMES = ["class", 'a "name"', "back\\slash", "new\nline", ""]


@pytest.mark.parametrize("decode", [None, json.loads], ids=["JSON", "decode="])
@pytest.mark.parametrize("name", NAMES)
@given(st.lists(FITS, min_size=1, max_size=6), st.lists(ODD, max_size=2), st.booleans())
def test_all_at_once_is_as_row_by_row(
    decode: Callable[[bytes], Any] | None,
    name: str,
    fits: list[dict[str, Any]],
    odd: list[dict[str, Any]],
    skips: bool,
) -> None:
    recipe = recipe_of(decode, skips=skips, renamed_to=name)
    assert isinstance(recipe, StreamRecipe)
    for records in (fits, fits + odd, odd + fits):
        data = [json.dumps(renamed(record, name)).encode() for record in records]
        assert outcome(data, recipe.step(), recipe) == outcome(data, RowByRow(recipe), recipe)


@pytest.mark.parametrize("decode", [None, json.loads], ids=["JSON", "decode="])
def test_records_like_the_first_are_not_taken_one_by_one(
    decode: Callable[[bytes], Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowStep, "__call__", lambda *_: pytest.fail("row by row"))
    recipe = recipe_of(decode, skips=True)
    others = [FIRST | {"user": user, "price": user if user else 0.25, "no identifier": ""} for user in range(5)]
    leaves = made([json.dumps(record).encode() for record in others], recipe.step(), recipe)
    assert leaves["user"].tolist() == [*range(5)] and leaves["price"].tolist() == [0.25, 1, 2, 3, 4]
    assert leaves["no identifier"] == [""] * 5 and not leaves["bad"].any()


class Word(str):
    """A text of a type that no trainer knows."""


class Stubborn:
    def __array__(self, *_: Any) -> Any:
        raise RuntimeError("no array of me")


def odd_ones(record: bytes) -> dict[Any, Any]:
    click = json.loads(record)
    kind = click.pop("kind")
    return {
        "subclass": {**click, "text": Word("word")},
        "surrogate": {**click, "text": "\ud800"},
        "no array": {**click, "price": Stubborn()},
        "too large": {**click, "price": np.float64(1e300)},
        "number as name": {7 if name == "7" else name: value for name, value in click.items()},
    }.get(kind, click)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("subclass", ""),
        ("number as name", ""),
        ("surrogate", "'text' is no valid Unicode"),
        ("no array", "'price' of type Stubborn makes no array: no array of me"),
        ("too large", "'price' has float64 that <f4, as in the first sample, cannot hold"),
    ],
)
def test_what_a_function_gives_for_one_record_costs_no_other(kind: str, says: str) -> None:
    first = {"text": "a", "price": 0.5, "7": 1, "kind": ""}
    recipe = StreamRecipe(odd_ones, "refuse", True, "clicks").of_first(
        [("record 0", lambda: json.dumps(first).encode())], "clicks"
    )
    recipe = structs.replace(
        recipe,
        leaves=tuple(leaf._replace(dtype="<f4") if leaf.name == "price" else leaf for leaf in recipe.leaves),
    )
    data = [json.dumps({**first, "kind": each}).encode() for each in ("", kind, "")]
    leaves = made(data, recipe.step(), recipe)
    assert leaves["bad"].tolist() == [False, bool(says), False]
    assert leaves["text"] == ["a", "" if says else "word" if kind == "subclass" else "a", "a"]
    assert {*map(type, leaves["text"])} == {str} and leaves["7"].tolist() == [1, 0 if says else 1, 1]
    if says:
        with pytest.raises(SourceError, match=re.escape(says)):
            whole = structs.replace(recipe, skips=False, leaves=recipe.leaves[:-1])
            made(data, whole.step(), whole)


@pytest.mark.parametrize("first", [5, 2**63])
def test_whole_numbers_fit_by_their_values(first: int) -> None:
    data = [b'{"id": %d}' % each for each in (first, 5, 2**63, -1, 2**64)]
    recipe = StreamRecipe(None, "refuse", True, "clicks").of_first([("record 0", lambda: data[0])], "clicks")
    fits = [first, 5, 2**63, 0, 0] if first > 5 else [5, 5, 0, -1, 0]
    assert made(data, recipe.step(), recipe)["id"].tolist() == fits


def test_json_that_is_nested_too_deep_is_a_bad_record() -> None:
    first, deep = b'{"id": 1}', b'{"id": ' + b"[" * 5000 + b"]" * 5000 + b"}"
    recipe = StreamRecipe(None, "refuse", True, "clicks").of_first([("record 0", lambda: first)], "clicks")
    leaves = made([first, deep, first], recipe.step(), recipe)
    assert leaves["bad"].tolist() == [False, True, False]
