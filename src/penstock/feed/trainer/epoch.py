"""Where a trainer stands in its epochs: pure values, and the rules that lead from one to the next."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, cast

import msgspec

from penstock.contracts import Column, Cursor, CycleBegin, Joints, Known, last_read
from penstock.errors import BadSetting
from penstock.sources.sharding import batches, drawn, next_slice

_LEFT_OUT = 2
"""Separates this use of a feed's seed from others (sources.order)."""


class Epoch(NamedTuple):
    """A place in an epoch."""

    number: int = 0  # number of the epoch, from 0
    start: Cursor | None = None  # its first sample; None until the feeder has chosen where a new trainer joins
    passed: int = 0  # rows that are past: handed out to some rank, or left out
    left_out: tuple[int, ...] = ()  # rows, sorted and counted from its start, that no rank gets (``drop_last``)
    at: Cursor | None = None
    """Where its next row is looked for, of a trainer that takes some samples only; None if that follows from
    ``passed``."""
    known: Known | None = None  # what a loaded state knows of joints; None for what the feed has sent


class Dealt(NamedTuple):
    """A rank's next batch: runs [start, stop) of the epoch's rows, their number, and the place after it."""

    runs: list[tuple[int, int]]
    rows: int
    after: Epoch


@dataclass(frozen=True)
class EpochRules:
    """How one trainer's epochs are cut into batches."""

    cycle: int | None  # samples of a cycle; None if only a pass of the source shows it
    batch_size: int | None  # rows of a batch of one rank; None where batches come as the source makes them
    rank: int  # rank of this trainer
    world: int  # number of ranks
    drop_last: bool  # whether rows that fill no batch of all ranks are left out
    segment_starts: Sequence[int]
    """Where the feed's segments begin. With one segment the last rows of an epoch that begins with a cycle are
    left out, else rows drawn afresh from all of each epoch, so that no sample is always missing."""
    seed: int  # random seed of the feed
    pad: bool = False  # whether ranks get rows twice where these are too few for equal batches
    full: bool = False  # whether padded batches are full ones
    selected: int | None = None  # how many samples this trainer takes of each cycle; None for all
    anywhere: bool = False  # whether an epoch may begin at any block
    joins: bool = False  # whether it may do so by a joint made there
    at_joints: bool = False  # whether it may do so at some blocks only

    @property
    def samples(self) -> int | None:
        """Samples of an epoch; None if only a pass of the source shows it."""
        return self.cycle if self.selected is None else self.selected

    def begin(self, number: int, start: Cursor | None) -> Epoch:
        """Return the beginning of an epoch."""
        return self._leaving_out(Epoch(number, start))

    def following(self, epoch: Epoch) -> Epoch:
        """Return the beginning of the next epoch after one read to its end: a cycle on."""
        if epoch.start is None:
            return self.begin(epoch.number + 1, None)
        sample = 0 if self.samples is None else epoch.start.sample
        return self.begin(epoch.number + 1, Cursor(epoch.start.cycle + 1, sample))

    def after_giving_up(self, epoch: Epoch) -> Epoch:
        """Return the beginning of the next epoch after one broken off.

        The feeder chooses where, unless epochs of the source begin with segments: then at the next one.
        """
        if self.samples is None or self.anywhere or self.joins:
            return self.begin(epoch.number + 1, None)
        return self.begin(epoch.number + 1, self.at(epoch).next_segment(self.segment_starts))

    def at(self, epoch: Epoch) -> Cursor:
        """Return the position in the feed of an epoch's next row, or from which on it is looked for."""
        if epoch.at is not None:
            return epoch.at
        assert epoch.start is not None
        return epoch.start.after(epoch.passed, self.cycle)

    def is_over(self, epoch: Epoch) -> bool:
        """Whether all rows of an epoch are past, where their number is known."""
        return epoch.passed > 0 and epoch.passed == self.samples

    def next(self, epoch: Epoch) -> Dealt | None:
        """Return the next batch, for a known number of rows and batch size; None at the epoch's end."""
        samples = self.samples
        assert samples is not None and self.batch_size is not None
        number, start, passed, left_out, *_ = epoch
        if self.world == 1 and not left_out:
            stop = min(passed + self.batch_size, samples)
            return Dealt([(passed, stop)], stop - passed, Epoch(number, start, stop)) if stop > passed else None
        still_out = left_out[bisect_left(left_out, passed) :]
        remain = samples - passed - len(still_out)
        share = next_slice(remain, self.batch_size, self.rank, self.world, pad=self.pad, full=self.full)
        if share is None:
            return None
        mine = self._runs(passed, still_out, share.start, share.stop)
        after = samples
        if share.taken < remain:
            _, after = self._runs(passed, still_out, share.taken - 1, share.taken)[0]
        return Dealt(mine, share.stop - share.start, Epoch(number, start, after, left_out))

    def saved(self, epoch: Epoch) -> dict[str, Any]:
        """Return a place as plain numbers."""
        if self.is_over(epoch):
            epoch = self.following(epoch)
        return {
            "epoch": epoch.number,
            "start": None if epoch.start is None else list(epoch.start),
            "delivered": epoch.passed,
            "left_out": [row for row in epoch.left_out if row >= epoch.passed],
            **({} if epoch.at is None else {"at": list(epoch.at)}),
        }

    def loaded(self, state: dict[str, Any]) -> Epoch:
        """Return the place that ``saved`` gave, or the next epoch's beginning if nothing is left of it.

        Rows are left out as the state says; if this trainer has another batch
        size, those left out of the rest are drawn anew.
        """
        epoch = Epoch(
            _whole(state, "epoch", 10**9),
            self.cursor(state, "start"),
            _whole(state, "delivered", 2**48 if self.samples is None else self.samples),
            self._rows_left_out(state.get("left_out")),
            self.cursor(state, "at"),
        )
        if (epoch.at is not None) != (self.selected is not None and epoch.passed > 0):
            raise _nonsense("at", state.get("at"), "a selection's state, and no other, says where its rest begins")
        if epoch.start is None and epoch.passed:
            raise _nonsense("start", None, "the epoch has begun")
        epoch = epoch._replace(left_out=epoch.left_out[bisect_left(epoch.left_out, epoch.passed) :])
        if self.samples is None:
            return epoch
        if epoch.passed < self.samples and self.batch_size is not None:  # the rest may not be dealt evenly
            self._batches(self.samples - epoch.passed)
        remain = self.samples - epoch.passed - len(epoch.left_out)
        if self._surplus(remain) or (epoch.left_out and not self.drop_last):
            epoch = self._leaving_out(epoch)
        over = epoch.passed > 0 and epoch.passed + len(epoch.left_out) == self.samples
        return self.following(epoch) if over else epoch

    def may_begin(self, start: Cursor, known: Known) -> bool:
        """Whether an epoch that begins at a place of this feed's holds every sample once."""
        return not self.joins or known.may_begin(start, self.segment_starts, at_joints=self.at_joints)

    def known(self, state: dict[str, Any], epoch: Epoch) -> Known:
        """Return what a state knows of joints at its place."""
        given: Any = state.get("joints", {})
        assert epoch.start is not None
        opened = last_read(self.at(epoch), epoch.start)
        try:
            changes = tuple((int(cycle), tuple(map(int, places))) for cycle, places in given.get("in_force", ()))
            known = Known(Joints(changes), opened, tuple(map(int, given.get("alive", ()))))
        except (AttributeError, TypeError, ValueError):
            raise _nonsense("joints", given, "they are places, in force from a cycle on or alive") from None
        if not known.fits(self.cycle or 0):
            raise _nonsense("joints", given, "cycles and places must rise, and lie in it")
        return known

    def cycles(self, state: dict[str, Any]) -> Known:
        """Return what a state knows of a stream's cycles."""
        try:
            cycles = msgspec.convert(state["cycles"], tuple[CycleBegin, ...])
            known = Known(cycles=cycles, columns=msgspec.convert(state.get("columns", ()), tuple[Column, ...]))
        except msgspec.ValidationError:
            known = None
        start = self.cursor(state, "start")
        if (
            known is None
            or not known.fits(2**48)
            or start is None
            or [start.cycle] != [each.cycle for each in known.cycles[:1]]
        ):
            raise _nonsense("cycles", state["cycles"], "they say where its and later cycles of a stream begin")
        return known

    def _batches(self, rows: int) -> int:
        assert self.batch_size is not None
        return batches(rows, self.batch_size, self.world, drop_last=self.drop_last, pad=self.pad)

    def _surplus(self, rows: int) -> int:
        """Return how many of these remaining rows ``drop_last`` leaves out."""
        if not self.drop_last or self.batch_size is None:
            return 0
        return max(0, rows - self._batches(rows) * self.batch_size * self.world)  # padded, the rows may be fewer

    def _leaving_out(self, epoch: Epoch) -> Epoch:
        """Choose which of an epoch's remaining rows are left out."""
        if self.samples is None:
            return epoch
        count = self._surplus(self.samples - epoch.passed)
        joined_late = self.joins and epoch.start is not None and epoch.start.sample > 0
        if len(self.segment_starts) == 1 and not joined_late:
            return epoch._replace(left_out=tuple(range(self.samples - count, self.samples)))
        words = (self.seed % 2**64, _LEFT_OUT, epoch.number, epoch.passed)
        return epoch._replace(left_out=drawn(count, epoch.passed, self.samples, *words))

    def _runs(self, passed: int, left_out: Sequence[int], start: int, stop: int) -> list[tuple[int, int]]:
        """Return where the dealt rows [start, stop), counted from row ``passed``, lie in the epoch."""
        assert self.samples is not None
        found: list[tuple[int, int]] = []
        dealt = 0
        for end in (*left_out, self.samples):
            low, high = max(start, dealt), min(stop, dealt + end - passed)
            if low < high:
                found.append((passed + low - dealt, passed + high - dealt))
            dealt += end - passed
            passed = end + 1
            if dealt >= stop:
                break
        return found

    def cursor(self, state: dict[str, Any], name: str) -> Cursor | None:
        """Return a position that a state holds; None if it has none of this name."""
        given = state.get(name)
        if given is None:
            return None
        if not isinstance(given, (list, tuple)) or len(cast("list[Any]", given)) != 2:
            raise _nonsense(name, given, "it must be a cycle and a sample")
        cycle, sample = cast("list[Any]", given)
        numbers = {f"{name}'s cycle": cycle, f"{name}'s sample": sample}
        most = 2**48 if self.cycle is None else self.cycle - 1
        return Cursor(_whole(numbers, f"{name}'s cycle", 10**9), _whole(numbers, f"{name}'s sample", most))

    def _rows_left_out(self, given: Any) -> tuple[int, ...]:
        if not isinstance(given, (list, tuple)):
            raise _nonsense("left_out", given, "it must be a list of rows")
        most = -1 if self.samples is None else self.samples - 1
        rows = tuple(_whole({"left_out": row}, "left_out", most) for row in cast("list[Any]", given))
        if any(one >= other for one, other in pairwise(rows)):
            raise _nonsense("left_out", given, "its rows must rise")
        return rows


def _whole(state: dict[str, Any], name: str, most: int) -> int:
    value = state.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise _nonsense(name, value, f"it must be a whole number from 0 to {most:,}")
    return value


def _nonsense(name: str, value: Any, why: str) -> BadSetting:
    return BadSetting(
        f"this state has {name}={value!r}, and {why} in this feed: it was damaged, or belongs to another feed. "
        "Load one that state_dict() has given here"
    )
