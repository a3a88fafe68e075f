"""A trainer's checks of its feeder's messages: each is checked once, where it arrives."""

from __future__ import annotations

import fcntl
import os
import shlex
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from penstock.contracts import Cursor, Ids
from penstock.errors import ProtocolError
from penstock.feed import wire
from penstock.feed.named_rows import decode_ids, decode_kept
from penstock.feed.statistics import FeederStatistics
from penstock.memory.room import ALIGNMENT
from penstock.memory.slots import EMPTY, Placement
from penstock.tree import Leaf, Node, Ragged, Scalar, array_nodes, difference, item_bytes, leaf_sizes

MOST_RINGS = 2
_AT_ANY_TIME = (
    wire.Failed,
    wire.Evicted,
    wire.Rejected,
    wire.Apart,
    wire.Stuck,
    wire.Move,
    wire.Witness,
    wire.Bye,
)
_texts_from = msgspec.msgpack.Decoder(list[str]).decode  # in 0.6 of the time that any list takes


def _scalars_from(encoded: memoryview) -> list[Any]:
    try:
        return _texts_from(encoded)
    except msgspec.ValidationError:  # numbers
        return msgspec.msgpack.decode(encoded, type=list[Any])


class MessageValidator:
    """Checks each message of a feeder against those before.

    Checking one message twice is harmless; the caller sets ``next`` when it takes
    the message.
    """

    def __init__(self, name: str, pid: int, *, selects: bool) -> None:
        self.next: Cursor | None = None  # the first sample that is yet to come; None before the first ``Started``
        self.asked = False  # whether the feeder was asked for its statistics
        self.layout: Node | None = None  # the tree of the newest block
        self.nodes: list[Leaf] = []  # that tree's leaves, in order
        self.placement: Placement | None = None  # how the newest block lies in memory
        self.kept: Ids | None = None  # which rows the newest block has; None for all
        self._name = name  # name of the feed, as the trainer asked for it
        self._pid = pid  # the feeder's process, from the kernel
        self._selects = selects  # whether this trainer takes some samples only, so that blocks may lack others
        self._window_bytes = 0
        self._samples: int | None = None
        self._whole = False
        self._sizes: list[Any] = []
        self._checked: tuple[object, ...] = ()

    def greeting(self, packet: bytes, fds: Sequence[int]) -> wire.Welcome | wire.Rejected:
        """Decode and check the answer to a Hello."""
        message = self._decoded(packet)
        if isinstance(message, wire.Rejected):
            return message
        if not isinstance(message, wire.Welcome):
            raise self.nonsense(f"it answered a hello with {_called(message)}")
        self._check_welcome(message, fds)
        self._window_bytes = message.settings.window_bytes
        self._samples = message.samples
        self._whole = message.settings.whole_batches
        return message

    def message(self, packet: bytes) -> tuple[wire.FromFeeder, Cursor | None]:
        """Decode and check a later message; return it and the sample that must come after it."""
        message, following = self._decoded(packet), self.next
        if isinstance(message, wire.BlockAnnounced):
            following = self._check_block(message)
        elif isinstance(message, wire.Started):
            following = Cursor(message.cycle, message.sample)
            if self._samples is not None and message.sample >= self._samples:
                raise self.nonsense(f"it starts at sample {message.sample} of a cycle of {self._samples}")
        elif isinstance(message, wire.CycleEnd):
            here = Cursor(message.cycle, message.samples)
            if self._samples is not None or self.next is None or not here <= self.next < (message.cycle + 1, 0):
                raise self.nonsense(f"it ends cycle {message.cycle} at sample {message.samples}, {self._wanted()}")
            following = Cursor(message.cycle + 1, 0)
        elif isinstance(message, (wire.InForce, wire.Prepare)):
            if not message.known.fits(self._samples or (0 if isinstance(message, wire.InForce) else 2**48)):
                raise self.nonsense(f"its joints are {str(message.known)[:100]} of {self._samples} samples")
        elif not isinstance(message, _AT_ANY_TIME) and not (self.asked and isinstance(message, FeederStatistics)):
            raise self.nonsense(f"it sent {_called(message)} unasked")
        return message, following

    def scalars(self, encoded: memoryview, rows: int) -> list[Scalar]:
        """Decode a list with one scalar per row; in whole batches it may have any length."""
        try:
            values = _scalars_from(encoded)
        except wire.UNDECODABLE as error:
            raise self.nonsense(f"where a list should lie, there is none ({error})") from None
        if len(values) != rows and not self._whole:
            raise self.nonsense(f"a list of {len(values)} lies where one for {rows} rows should")
        return values

    def offsets(self, node: Ragged, leaf: Any, read: Callable[[Any], memoryview], rows: int) -> Ids:
        """Return where the rows of a ragged leaf lie; ``read`` brings bytes of it to the host."""
        count = int(np.frombuffer(read(leaf[:8]), np.int64)[0]) if leaf.nbytes >= 8 else -1
        if not 0 <= count < leaf.nbytes // 8 or (count != rows and not self._whole):
            raise self.nonsense(f"a leaf of {count} ragged rows lies where one for {rows} rows should")
        # A copy is checked, and used: the bytes may be overwritten meanwhile.
        offsets = np.frombuffer(read(leaf[: 8 * (count + 1)]), np.int64).copy()
        offsets[0] = 0
        if (offsets[1:] < offsets[:-1]).any():
            raise self.nonsense("ragged rows end before they begin")
        if (nbytes := offsets.nbytes + int(offsets[-1]) * item_bytes(node)) != leaf.nbytes:
            raise self.nonsense(f"a leaf of {leaf.nbytes:,} bytes lies where ragged rows make {nbytes:,}")
        return offsets

    def nonsense(self, what: str) -> ProtocolError:
        """Make the error for a feeder that breaks the protocol."""
        return ProtocolError(
            f"the feeder (process {self._pid}) of feed {self._name!r} makes no sense: {what}. End it with: "
            f"penstock stop {shlex.quote(self._name)}, and start the feed again with the Penstock of this process"
        )

    def _decoded(self, packet: bytes | memoryview) -> wire.FromFeeder:
        try:
            return wire.decode_from_feeder(packet)
        except ProtocolError as error:
            raise self.nonsense(str(error)) from None

    def _check_welcome(self, welcome: wire.Welcome, fds: Sequence[int]) -> None:
        settings, starts, samples = welcome.settings, welcome.segment_starts, welcome.samples
        if welcome.name != self._name:
            raise self.nonsense(f"it serves {welcome.name[:1000]!r}")
        if len(fds) != len(welcome.rings) or not 1 <= len(fds) <= MOST_RINGS:
            raise self.nonsense(f"it has {len(welcome.rings)} rings, and sent {len(fds)} descriptors")
        if starts[:1] != (0,) or any(a >= b for a, b in pairwise(starts)) or starts[-1] >= (samples or 2**48):
            raise self.nonsense(f"its segments start at {str(starts)[:100]} of {samples} samples")
        if (settings.segments or 0) < 1 or (settings.epochs is not None and settings.epochs < 1):
            raise self.nonsense(f"it gives {settings.epochs} epochs of {settings.segments} segments")
        if welcome.fingerprint is not None and len(welcome.fingerprint.digest.split()) != 2:
            raise self.nonsense("its fingerprint is malformed")
        if settings.window_bytes < 1 or not _holds(fds[-1], settings.window_bytes):
            raise self.nonsense(f"its window of {settings.window_bytes} bytes is not in the file that it sent")

    def _check_block(self, block: wire.BlockAnnounced) -> Cursor:
        at, samples = Cursor(block.cycle, block.sample), self._samples
        end = at.after(block.rows, samples)
        if self.next is None or not at <= self.next < end:
            raise self.nonsense(f"a block of {block.rows} rows came from {tuple(at)} on, {self._wanted()}")
        if samples is not None and block.sample + block.rows > samples:
            raise self.nonsense(f"a block goes on to row {block.sample + block.rows} of a cycle of {samples}")
        stored = self._check_names(block)
        if block.layout is not None:
            if self.layout not in (None, block.layout) and not self._whole:
                raise self.nonsense(f"its blocks changed: {difference(self.layout, block.layout)}")
            try:
                self._sizes = list(leaf_sizes(block.layout))
            except ValueError as error:
                raise self.nonsense(f"it announced {error}") from None
            self.layout, self.nodes = block.layout, list(array_nodes(block.layout))
        if not stored:
            if block.leaf_offsets or block.leaf_bytes:
                raise self.nonsense(f"a block without rows has {len(block.leaf_offsets)} leaves")
            self.placement, self._checked = EMPTY, ()
            return end
        if self.layout is None:
            raise self.nonsense("its first block has no layout")
        # Unless a feed gives whole batches, nearly all its blocks are alike.
        checked = (self.layout, stored, block.leaf_offsets, block.leaf_bytes)
        if block.layout is not None or checked != self._checked:
            self._check_leaves(block, stored)
            self.placement = Placement(self.layout, block.leaf_offsets, block.leaf_bytes, block.nbytes)
            self._checked = checked
        assert self.placement is not None
        nbytes = self.placement.nbytes
        if block.offset % ALIGNMENT or block.offset + nbytes > self._window_bytes:
            raise self.nonsense(
                f"a block of {nbytes:,} bytes at {block.offset:,} does not lie in its window of "
                f"{self._window_bytes:,} bytes"
            )
        return end

    def _check_names(self, block: wire.BlockAnnounced) -> int:
        """Check which of its rows a block has, and their ids; return how many it has."""
        if block.kept and (not self._selects or len(block.kept) != -(-block.rows // 8)):
            raise self.nonsense(f"a block of {block.rows} rows came with {len(block.kept)} bytes to name them")
        self.kept = decode_kept(block.kept) if block.kept else None
        stored = block.rows if self.kept is None else len(self.kept)
        if self.kept is not None and stored and self.kept[-1] >= block.rows:
            raise self.nonsense(f"a block of {block.rows} rows has row {self.kept[-1]}")
        if (block.ids or (self._selects and stored)) and len(block.ids) not in (4 * stored, 8 * stored):
            raise self.nonsense(f"{len(block.ids)} bytes of ids came with a block of {stored} rows")
        if self._selects and stored:
            ids = decode_ids(block.ids, stored)
            if ids.min() < 0 or ids.max() >= (self._samples or 0):
                raise self.nonsense(
                    f"ids {ids.min()} to {ids.max()} came of a data set of {self._samples} samples"
                )
        return stored

    def _check_leaves(self, block: wire.BlockAnnounced, stored: int) -> None:
        if not len(block.leaf_offsets) == len(block.leaf_bytes) == len(self._sizes):
            raise self.nonsense(
                f"a tree of {len(self._sizes)} leaves lies at {len(block.leaf_offsets)} offsets, and "
                f"{len(block.leaf_bytes)} sizes were given"
            )
        rows = 1 if self._whole else stored
        for i, (size, start, nbytes) in enumerate(
            zip(self._sizes, block.leaf_offsets, block.leaf_bytes, strict=True)
        ):
            if size is not None and (nbytes != size.nbytes * rows or start % size.alignment):
                raise self.nonsense(
                    f"leaf {i} of a block of {stored} rows has {nbytes:,} bytes at {start:,}, where its type "
                    f"and shape make {size.nbytes * rows:,}"
                )

    def _wanted(self) -> str:
        return "before any was asked for" if self.next is None else f"where {tuple(self.next)} comes next"


def _holds(fd: int, nbytes: int) -> bool:
    """Whether a file has ``nbytes`` and cannot shrink: reading past a file's end kills a process."""
    try:
        return os.fstat(fd).st_size >= nbytes and bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    except OSError:  # it is no memory file
        return False


def _called(message: wire.FromFeeder) -> str:
    return f"a {type(message).__name__}"
