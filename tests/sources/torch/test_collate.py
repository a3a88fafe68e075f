"""Batches that are collated into the ring are those that the loader's own collation gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from torch.utils.data import default_collate

from penstock.memory.host_ring import WritableHostRing
from penstock.memory.slots import Filled, Slot, Slots
from penstock.sources.torch.collate import CollateIntoRing
from penstock.testing.source import read_back
from penstock.tree import describe

SLOT = Slot(4096, 1 << 16)


@pytest.fixture
def slots() -> Iterator[Slots]:
    with closing(WritableHostRing.create(1 << 20)) as ring, closing(Slots(ring)) as made:
        yield made


class Pair(NamedTuple):
    image: Any
    label: Any


def assert_equal_trees(one: Any, other: Any) -> None:
    before, after = describe(one), describe(other)
    assert before.layout == after.layout
    for a, b in zip(before.leaves, after.leaves, strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        else:
            np.testing.assert_array_equal(a, b)


def tensor(i: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.rand(shape, generator=torch.Generator().manual_seed(i)) * 100).to(dtype)


KINDS: dict[str, Callable[[int], Any]] = {
    "image and label": lambda i: (tensor(i, 3, 5, dtype=torch.uint8), i),
    "label first": lambda i: (i, tensor(i, 3, 5, dtype=torch.uint8)),
    "numpy": lambda i: {"x": tensor(i, 4).numpy(), "n": np.float32(i), "y": np.int64(i)},
    "same shapes": lambda i: [tensor(i, 7), tensor(-i, 7), tensor(i, 7) + i],
    "nested": lambda i: {"a": Pair(tensor(i, 2, 2), {"b": (tensor(-i, 1), i / 2)}), "c": tensor(i, 3)},
    "bfloat16": lambda i: tensor(i, 5, dtype=torch.bfloat16),
    "bool": lambda i: tensor(i, 5) > 50,
    "zero-sized": lambda i: (torch.empty(0, 3), tensor(i, 2)),
    "scalars": torch.tensor,
    "names": lambda i: (f"image-{i}.jpg", tensor(i, 2)),
    "strided": lambda i: tensor(i, 4, 6).t()[::2],
    "complex": lambda i: torch.complex(tensor(i, 3), tensor(-i, 3)).conj(),
}
"""A sample by its number, in many structures."""


def samples_like(kind: str, rows: int) -> list[Any]:
    return [KINDS[kind](i) for i in range(rows)]


def collate_as_the_user_likes(samples: list[Any]) -> Any:
    return default_collate(samples)


@pytest.mark.parametrize("rows", [1, 4, 33])
@pytest.mark.parametrize("kind", KINDS)
def test_a_slot_holds_what_default_collate_gives(kind, rows, slots):
    slots.offer(SLOT)
    samples = samples_like(kind, rows)
    filled = CollateIntoRing(default_collate, slots)(samples)
    assert isinstance(filled, Filled)
    assert filled.slot == SLOT
    assert filled.rows == rows
    assert_equal_trees(read_back(filled, slots), default_collate(samples))
    assert slots.take() is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_slot_holds_what_a_collate_fn_of_the_users_gives(kind, slots):
    def collate(samples: list[Any]) -> Any:
        return {"batch": default_collate(samples), "reversed": np.arange(len(samples))[::-1]}

    slots.offer(SLOT)
    filled = CollateIntoRing(collate, slots)(samples_like(kind, 6))
    assert isinstance(filled, Filled)
    assert_equal_trees(read_back(filled, slots), collate(samples_like(kind, 6)))


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["u1", "i8", "f2", "f8"])), min_size=1, max_size=6))
def test_leaves_of_any_sizes_lie_beside_one_another(leaves):
    samples = [tuple(np.full(size, i + j, dtype) for j, (size, dtype) in enumerate(leaves)) for i in range(5)]
    with closing(WritableHostRing.create(1 << 20)) as ring, closing(Slots(ring)) as slots:
        slots.offer(SLOT)
        filled = CollateIntoRing(default_collate, slots)(samples)
        assert isinstance(filled, Filled)
        assert_equal_trees(read_back(filled, slots), default_collate(samples))
        assert all(offset % 64 == 0 for offset in filled.placement.leaf_offsets)


def test_default_collate_stacks_in_the_slot_and_nothing_is_copied_there(slots, monkeypatch):
    seen: list[Any] = []
    monkeypatch.setattr(
        "penstock.sources.torch.collate.describe", lambda tree: seen.append(tree) or describe(tree)
    )
    slots.offer(SLOT)
    CollateIntoRing(default_collate, slots)(samples_like("image and label", 8))
    image, label = seen[0]
    start = slots.memory(SLOT).ctypes.data
    assert image.data_ptr() == start
    assert not start <= label.data_ptr() < start + SLOT.nbytes, "numbers are gathered by torch, then copied"


@pytest.mark.parametrize("collate_fn", [default_collate, collate_as_the_user_likes])
def test_without_a_slot_a_batch_is_given_as_it_is(collate_fn, slots):
    batch = CollateIntoRing(collate_fn, slots)(samples_like("nested", 4))
    assert_equal_trees(batch, default_collate(samples_like("nested", 4)))


@pytest.mark.parametrize("nbytes", [64, 128, 4096])
@pytest.mark.parametrize("collate_fn", [default_collate, collate_as_the_user_likes])
def test_a_batch_that_does_not_fit_is_given_as_it_is_and_its_slot_is_on_offer_again(collate_fn, nbytes, slots):
    slots.offer(Slot(0, nbytes))
    samples = [(torch.full((20,), i), torch.full((500,), i)) for i in range(4)]
    batch = CollateIntoRing(collate_fn, slots)(samples)
    slots.memory(Slot(0, nbytes))[:] = 255  # what comes next in that slot
    assert_equal_trees(batch, default_collate(samples))
    assert slots.take() == Slot(0, nbytes)


def test_a_batch_that_cannot_travel_is_given_as_it_is_for_the_feeder_to_say_so(slots):
    slots.offer(SLOT)
    batch = CollateIntoRing(lambda samples: {"them": samples, "what": object()}, slots)([1, 2])
    assert batch["them"] == [1, 2]
    assert slots.take() == SLOT


def test_a_collate_fn_that_raises_leaves_its_slot_on_offer(slots):
    slots.offer(SLOT)
    with pytest.raises(RuntimeError, match="equal size"):
        CollateIntoRing(default_collate, slots)([torch.zeros(2), torch.zeros(3)])
    assert slots.take() == SLOT


def test_tensors_that_are_more_than_their_bytes_are_stacked_by_torch(slots):
    slots.offer(SLOT)
    samples = [torch.tensor([1.0, 2.0]), torch.tensor([3, 4]), torch.tensor([0.5, 1.0], requires_grad=True)]
    filled = CollateIntoRing(default_collate, slots)(samples)
    assert isinstance(filled, Filled)
    assert_equal_trees(read_back(filled, slots), torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.5, 1.0]]))
