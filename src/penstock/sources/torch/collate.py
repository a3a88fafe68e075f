"""Collation that writes a loader's batches into the ring, so that they need not be copied there."""

# torch's own annotations leave what it collates unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from penstock.contracts import ByteArray, Tree
from penstock.errors import UnsupportedLeaf
from penstock.memory.room import aligned
from penstock.memory.slots import Filled, Placement, Slot, Slots
from penstock.sources.torch.compat import collate, collate_fn_map, collate_tensor_fn, stacks_tensors
from penstock.tree import array_nodes, bytes_of, describe


class CollateIntoRing:
    """Runs a loader's ``collate_fn``, in a worker or not, and leaves its batch in a slot.

    ``default_collate`` stacks the samples right there; what another function
    returns is copied there. Without a slot, or if the batch does not fit, the
    batch is returned as it is.
    """

    def __init__(self, collate_fn: Callable[[Any], Tree], slots: Slots) -> None:
        self._collate_fn = collate_fn  # the loader's own
        self._slots = slots  # where slots are on offer

    def __call__(self, samples: Any) -> Tree | Filled:
        slot = self._slots.take()
        if slot is None:
            return self._collate_fn(samples)
        filled = None
        try:
            writer = _SlotWriter(self._slots.memory(slot))
            if stacks_tensors(self._collate_fn):
                filled = _filled(collate(samples, collate_fn_map=writer.collate_fn_map()), slot, writer)
                return filled or self._collate_fn(samples)
            tree = self._collate_fn(samples)
            filled = _filled(tree, slot, writer)
            return filled or tree
        finally:
            if filled is None:
                self._slots.offer(slot)


class _SlotWriter:
    """Fills a slot from its beginning on."""

    def __init__(self, memory: ByteArray) -> None:
        self._memory = memory
        self._address = memory.ctypes.data
        self._used = 0

    def collate_fn_map(self) -> dict[Any, Any]:
        return {**collate_fn_map(), torch.Tensor: self._stack}

    def place(self, part: ByteArray) -> int | None:
        """Copy bytes into the slot unless they lie there already; return where. None if there is no room."""
        offset = part.ctypes.data - self._address
        if 0 <= offset < self._memory.nbytes and part.nbytes:
            return offset
        offset = self._used
        if (room := self._take(part.nbytes)) is None:
            return None
        room[:] = part
        return offset

    def _take(self, nbytes: int) -> ByteArray | None:
        start = self._used
        if start + aligned(nbytes) > self._memory.nbytes:
            return None
        self._used += aligned(nbytes)
        return self._memory[start : start + nbytes]

    def _stack(self, batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
        one = batch[0]
        nbytes = len(batch) * one.numel() * one.element_size()
        plain = all(_is_plain(each) and each.dtype == one.dtype for each in batch)
        if not plain or nbytes == 0 or (room := self._take(nbytes)) is None:
            return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
        out = torch.frombuffer(room, dtype=one.dtype).view(len(batch), *one.shape)
        return torch.stack(list(batch), 0, out=out)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is fully described by its type, shape and bytes."""
    on_host = type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.device.type == "cpu"
    return on_host and not (tensor.is_nested or tensor.is_quantized or tensor.requires_grad)


def _filled(tree: Tree, slot: Slot, writer: _SlotWriter) -> Filled | None:
    """Bring all of a tree into the slot; None if it does not fit, or cannot travel, which the feeder will say."""
    try:
        layout, rows, leaves = describe(tree)
    except UnsupportedLeaf:
        return None
    parts = [bytes_of(node, leaf) for node, leaf in zip(array_nodes(layout), leaves, strict=True)]
    offsets: list[int] = []
    for part in parts:
        offset = writer.place(part)
        if offset is None:
            return None
        offsets.append(offset)
    return Filled(slot, rows, Placement(layout, tuple(offsets), tuple(part.nbytes for part in parts), slot.nbytes))
