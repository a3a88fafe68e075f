"""Blocks on their way into the ring: transformed on its GPU, taken apart, compared with earlier ones, copied."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from penstock.contracts import ByteArray, DeviceBytes, Gpu, SourceBlock, Tree, WritableRing
from penstock.errors import BlockChanged, BlockTooLarge, GpuLost, SourceError, UnsupportedLeaf
from penstock.feed.wire import MAX_PACKET_BYTES
from penstock.memory.slots import EMPTY, Filled, Placement, place
from penstock.tree import (
    Array,
    Leaf,
    Node,
    array_nodes,
    build,
    bytes_of,
    describe,
    device_leaf,
    difference,
    same_but_for_shapes,
    tensor_bytes,
)


class DeviceTransform:
    """Brings a block's arrays to a GPU and calls a function on them there.

    It returns while copies and then kernels may still run: the device waits for
    them, this process does not.
    """

    def __init__(self, gpu: Gpu, call: Callable[[Tree], Tree], *, whole: bool) -> None:
        self._gpu = gpu
        self._call = call
        """Takes the block's tree, with its arrays as tensors on the GPU; strings and ragged rows stay as they are.
        """
        self._whole = whole  # whether the feed gives whole batches

    def __call__(self, tree: Tree) -> Tree:
        """Return what the function makes of a block."""
        parts = describe(tree, whole=self._whole)
        leaves: list[Any] = []
        taken: list[DeviceBytes] = []
        for node, leaf in zip(array_nodes(parts.layout), parts.leaves, strict=True):
            if not isinstance(node, Array):
                leaves.append(leaf)
                continue
            origin = bytes_of(node, leaf)
            with self._gpu.beside():
                memory = self._gpu.empty(origin.nbytes)
                if origin.nbytes:
                    self._gpu.copy(memory, origin, pinned=False)
            taken.append(memory)
            leaves.append(device_leaf(node, memory, None if self._whole else parts.rows))
        self._gpu.wait_for_copies(taken, self._gpu.mark())
        return self._call(build(parts.layout, leaves))


_LEAF_BYTES = 18
"""Most bytes that a leaf's offset and size take in a message."""

Leaves = Sequence[ByteArray | DeviceBytes] | None
"""A block's bytes that are to be copied, on the host or on the ring's GPU; None for a block in a slot."""


def check_fits(nbytes: int, rows: int, window_bytes: int) -> None:
    """Raise BlockTooLarge if a block can never fit a window."""
    if nbytes > window_bytes:
        raise BlockTooLarge(
            f"a block of {nbytes:,} bytes ({rows:,} samples) is larger than the window of {window_bytes:,} bytes: "
            f'pass window="{-(-nbytes * 4 >> 20)}MiB" to the feeder or share() (--window to penstock feed), which '
            "holds four such blocks, or make the source's batches smaller"
        )


class BlockWriter:
    """Takes a feed's blocks apart and copies them into its ring."""

    def __init__(self, ring: WritableRing, *, whole_batches: bool, gpu: Gpu | None = None) -> None:
        self.copy_s = 0.0  # time spent copying
        self._ring = ring  # where blocks go
        self._whole = whole_batches  # whether shapes may vary from block to block
        self._gpu = gpu  # GPU of the ring, where leaves may lie too; None for the host
        self._layout: Node | None = None
        self._nodes: list[Leaf] = []

    def place(self, block: SourceBlock) -> tuple[Placement, Leaves]:
        """Take a block apart; return where its leaves lie in the ring, and the bytes to copy there."""
        if not block.stored:
            return EMPTY, []
        if isinstance(block.tree, Filled):
            there = block.tree
            layout = self._checked(there.placement.layout, there.rows, block)
            return there.placement._replace(layout=layout), None
        described = describe(block.tree, whole=self._whole, anywhere=self._gpu is not None)
        layout = self._checked(described.layout, described.rows, block)
        data = [self._bytes_of(node, leaf) for node, leaf in zip(self._nodes, described.leaves, strict=True)]
        placement = place(layout, [part.nbytes for part in data])
        check_fits(placement.nbytes, block.stored, self._ring.capacity_bytes)
        return placement, data

    def write(self, placement: Placement, leaves: Leaves, offset: int) -> None:
        """Bring a block into the ring, at the offset reserved for it.

        Raises:
            GpuLost: the ring's GPU fails.
        """
        began = time.monotonic()
        try:
            if leaves is None:
                self._ring.written_in_place(offset, placement.end)
            else:
                for start, part in zip(placement.leaf_offsets, leaves, strict=True):
                    self._ring.write(offset + start, part)
            self._ring.flush()
        except RuntimeError as error:  # as torch reports CUDA's; also what a transform's kernel did before
            if self._gpu is None:
                raise
            raise GpuLost(f"{self._gpu.name} failed while blocks were copied there: {error}") from error
        self.copy_s += time.monotonic() - began

    def _bytes_of(self, node: Leaf, leaf: Any) -> ByteArray | DeviceBytes:
        """Return a leaf's bytes, on the device where it lies."""
        if self._gpu is not None and isinstance(node, Array) and node.library == "torch":
            if self._gpu.holds(leaf):
                return tensor_bytes(leaf)
            if leaf.device.type != "cpu":
                raise UnsupportedLeaf(
                    f"the feed's transform returned a tensor on {leaf.device}, and the feed's ring is on "
                    f"{self._gpu.name}: return it there, or on the CPU"
                )
        return bytes_of(node, leaf)

    def _checked(self, layout: Node, rows: int, block: SourceBlock) -> Node:
        """Check a block's layout, and return it as the trainers got it."""
        if not self._whole and rows != block.stored:
            raise SourceError(
                f"the loader's collate_fn, or the feed's transform, made {rows} rows of {block.stored} samples: "
                "samples cannot be left out or added there. Filter in the dataset, or pass whole_batches=True to "
                "take batches as they are"
            )
        if self._layout is None or layout != self._layout:
            self._change(layout, block)
        assert self._layout is not None
        return self._layout

    def _change(self, layout: Node, block: SourceBlock) -> None:
        """Take over a layout, if blocks may have it and its description fits one message."""
        if self._layout is not None:
            changed = f"changed at sample {block.sample} of its cycle: {difference(self._layout, layout)}"
            if not self._whole:
                raise BlockChanged(
                    f"the source's batches {changed}. If they are meant to vary (dynamic padding), pass "
                    "whole_batches=True to the feeder or share()"
                )
            if not same_but_for_shapes(self._layout, layout):
                raise BlockChanged(f"the source's batches {changed}")
        nodes = list(array_nodes(layout))
        described = len(msgspec.msgpack.encode(layout)) + len(nodes) * _LEAF_BYTES
        if described > MAX_PACKET_BYTES - 1024:
            raise SourceError(
                f"a block's tree of {len(nodes):,} leaves takes {described:,} bytes to describe, and "
                f"{MAX_PACKET_BYTES:,} go into a message: put more of it into arrays, or into lists of strings"
            )
        self._layout, self._nodes = layout, nodes
