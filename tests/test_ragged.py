"""Rows of different length: cut, joined, padded and nested like the lists of arrays that they stand for."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

import penstock
from penstock import RaggedRows
from penstock.tree import (
    Array,
    Branch,
    Node,
    Ragged,
    array_nodes,
    bytes_of,
    describe,
    difference,
    joined,
    leaf_names,
    leaf_sizes,
    same_but_for_shapes,
    trusted_leaf,
)

LIBRARIES = {"numpy": np.asarray, "torch": torch.as_tensor}


@st.composite
def lists(draw: st.DrawFn, least: int = 1) -> list[Any]:
    """One array or tensor a row, some of them empty."""
    item = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    dtype = draw(st.sampled_from(["int64", "uint16", "float32", "bool", "complex64"]))
    lengths = draw(st.lists(st.integers(0, 5), min_size=least, max_size=9))
    total = iter(np.arange(1000))
    rows = [np.array([next(total) for _ in range(n * int(np.prod(item)))]) for n in lengths]
    of = LIBRARIES[draw(st.sampled_from(sorted(LIBRARIES)))]
    return [of(row.astype(dtype).reshape(n, *item)) for n, row in zip(lengths, rows, strict=True)]


def plain(rows: Any) -> list[Any]:
    return [(str(np.asarray(row).dtype), np.asarray(row).tolist()) for row in rows]


def travelled(rows: RaggedRows) -> RaggedRows:
    """Rows as they come out of their bytes, after their description has crossed the wire."""
    import msgspec

    layout, count, (leaf,) = describe(rows)
    assert count == len(rows)
    heard: Any = msgspec.msgpack.decode(msgspec.msgpack.encode(layout), type=Node)  # pyright: ignore
    assert heard == layout
    return trusted_leaf(heard, bytes_of(heard, leaf), None)


@settings(max_examples=examples(100))
@given(lists(), st.data())
def test_any_rows_are_picked_sliced_joined_and_sent_like_a_list_of_arrays(listed: list[Any], data: Any) -> None:
    rows = RaggedRows.of(listed)
    assert len(rows) == len(listed)
    assert type(rows.values) is type(rows.offsets) is type(listed[0])
    assert plain(rows) == plain(rows.tolist()) == plain(listed)
    assert rows.lengths.tolist() == [len(row) for row in listed]
    at = data.draw(st.integers(-len(listed), len(listed) - 1))
    assert plain([rows[at]]) == plain([listed[at]])
    start, stop = data.draw(st.tuples(*[st.none() | st.integers(-10, 10)] * 2))
    assert plain(rows[start:stop]) == plain(listed[start:stop])
    picked = data.draw(st.lists(st.integers(-len(listed), len(listed) - 1), max_size=12))
    assert plain(rows[np.array(picked, np.int64)]) == plain([listed[i] for i in picked])
    again = RaggedRows.concatenated([rows[start:stop], rows, rows[np.array(picked, np.int64)]])
    assert plain(again) == plain([*listed[start:stop], *listed, *(listed[i] for i in picked)])
    assert plain(travelled(rows)) == plain(listed)
    assert plain(travelled(rows[start:stop])) == plain(listed[start:stop])


@settings(max_examples=examples(50))
@given(lists(), st.integers(0, 3))
def test_padded_rows_begin_with_their_items_and_end_with_the_fill(listed: list[Any], more: int) -> None:
    rows = RaggedRows.of(listed)
    length = max(map(len, listed)) + more
    padded = rows.padded(1, length)
    assert type(padded) is type(rows.values)
    assert padded.dtype == rows.values.dtype
    assert tuple(padded.shape) == (len(listed), length, *rows.values.shape[1:])
    for got, row in zip(padded, listed, strict=True):
        assert plain([got[: len(row)]]) == plain([row])
        assert (got[len(row) :] == 1).all()
    assert rows.padded().shape[1] == length - more
    with pytest.raises(penstock.errors.BadSetting, match="a row has"):
        rows[:].padded(length=length - more - 1)


def test_text_is_padded_with_empty_text() -> None:
    rows = RaggedRows(np.array([b"a", b"b", b"c"]), np.array([0, 1, 3], np.int32))
    assert rows.padded().tolist() == [[b"a", b""], [b"b", b"c"]]
    assert rows.padded(b"-").tolist() == [[b"a", b"-"], [b"b", b"c"]]


def test_rows_of_numpy_and_of_torch_become_a_nested_tensor_on_the_same_memory() -> None:
    values = np.arange(6.0)
    for each in (values, torch.from_numpy(values)):
        nested = RaggedRows(each, [0, 2, 2, 6]).nested()
        assert nested.layout is torch.jagged
        assert [row.tolist() for row in nested.unbind()] == [[0, 1], [], [2, 3, 4, 5]]
        assert nested.values().data_ptr() == values.ctypes.data


@pytest.mark.parametrize(
    "offsets",
    [[], [0], [1, 4], [0, 5], [0, 3], [0, 3, 2, 4], [-1, 4], [0.0, 4.0], [[0, 4]], [0, 2**62, 4]],
    ids=str,
)
def test_offsets_that_cut_no_rows_are_refused(offsets: Any) -> None:
    for values in (np.arange(4), torch.arange(4)):
        with pytest.raises(penstock.errors.BadSetting, match="cut no values of shape"):
            RaggedRows(values, np.array(offsets))


def test_what_makes_no_ragged_rows_is_refused() -> None:
    for rows in ([], [np.zeros(2), np.zeros(2, "f4")], [np.zeros((1, 2)), np.zeros((1, 3))], [np.zeros(())]):
        with pytest.raises(penstock.errors.BadSetting, match="make no ragged leaf"):
            RaggedRows.of(rows)
    with pytest.raises(penstock.errors.BadSetting, match="give='nested'"):
        RaggedRows(np.zeros(1), [0, 1], "nested")  # type: ignore[arg-type]
    with pytest.raises(IndexError):
        RaggedRows(np.zeros(1), [0, 1])[1]


def test_no_rows_are_rows_too() -> None:
    rows = RaggedRows(np.zeros((0, 3)), [0])
    assert rows.tolist() == rows[:].tolist() == []
    assert rows.padded().shape == (0, 0, 3)


def test_rows_cross_to_another_process() -> None:
    again = pickle.loads(pickle.dumps(RaggedRows(np.arange(3), [0, 2, 3], "padded")))
    assert (plain(again), again.give) == ([("int64", [0, 1]), ("int64", [2])], "padded")


def test_rows_are_made_without_torch() -> None:
    script = "import sys, penstock; r = penstock.RaggedRows([3, 4], [0, 2]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def layout_of(values: Any, offsets: Any, **options: Any) -> Any:
    return describe({"x": RaggedRows(values, offsets, **options)}).layout


def test_what_differs_is_named_and_lengths_are_none() -> None:
    before = layout_of(np.arange(4), [0, 1, 4])
    assert before == Branch("dict", ("x",), (Ragged(Array("numpy", "<i8", ()), "ragged"),))
    assert difference(before, layout_of(np.arange(3), [0, 3, 3, 3])) is None
    padded, wide = layout_of(np.arange(4), [0, 4], give="padded"), layout_of(np.zeros((4, 2)), [0, 4])
    assert difference(before, padded) == (
        "leaf batch['x']: ragged rows, given ragged, of numpy <i8 of shape (…) before, "
        "ragged rows, given padded, of numpy <i8 of shape (…) now"
    )
    assert not same_but_for_shapes(before, padded)
    assert not same_but_for_shapes(before, wide)
    assert same_but_for_shapes(wide, layout_of(np.zeros((4, 3)), [0, 4]))
    assert list(leaf_names(before)) == ["batch['x']"]
    assert leaf_sizes(before) == [None]


def test_ragged_rows_that_cannot_travel_are_refused_by_name() -> None:
    with pytest.raises(penstock.errors.UnsupportedLeaf, match=r"batch\['x'\] has 1 ragged rows, .* have 3 rows"):
        describe({"id": np.arange(3), "x": RaggedRows(np.arange(4), [0, 4])})
    with pytest.raises(penstock.errors.UnsupportedLeaf, match=r"batch\.values of type .*dtype is object"):
        describe(RaggedRows(np.array([{}, None]), [0, 2]))
    with pytest.raises(penstock.errors.UnsupportedLeaf, match="items that have bytes"):
        describe(RaggedRows(np.zeros((4, 0)), [0, 4]))
    for items in (Array("numpy", "<i8", (3, 0)), Array("torch", "int64", (0,))):
        with pytest.raises(ValueError, match="items without bytes"):
            leaf_sizes(Ragged(items, "ragged"))


def test_the_leaves_of_several_blocks_are_joined() -> None:
    tree = {"id": np.arange(2), "name": ["a", "b"], "of": ("c", "d"), "x": RaggedRows(np.arange(3), [0, 1, 3])}
    layout, _, leaves = describe(tree)
    ids, names, of, rows = (
        joined(node, [leaf, leaf]) for node, leaf in zip(array_nodes(layout), leaves, strict=True)
    )
    assert ids.tolist() == [0, 1, 0, 1]
    assert (names, of) == (["a", "b", "a", "b"], ("c", "d", "c", "d"))
    assert plain(rows) == plain([np.arange(1), np.arange(1, 3)] * 2)
