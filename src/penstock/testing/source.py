"""The contract of every source: number its samples, stay in its segments, and open anywhere.

Long, as each promise to a feeder is one test of it.
"""

from __future__ import annotations

import os
import pickle
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.contracts import NO_JOINTS, Cursor, Ids, Joints, Source, SourceBlock, Tree, Wanted
from penstock.linux.forked_call import ForkedCall
from penstock.memory.host_ring import WritableHostRing
from penstock.memory.slots import Filled, Slot, Slots, SlotSource
from penstock.sources.order import Planned
from penstock.tree import Array, Node, Ragged, array_nodes, build, bytes_of, describe, trusted_leaf

_HANG_S = 60.0


def read_back(filled: Filled, slots: Slots) -> Tree:
    """Copy the tree that was left in a slot."""
    memory = slots.memory(filled.slot).copy()
    layout = filled.placement.layout
    parts = zip(array_nodes(layout), filled.placement.leaves_in(memory), strict=True)
    leaves = [trusted_leaf(node, part, filled.rows) for node, part in parts]
    return build(layout, leaves)


def bits_of(block: SourceBlock) -> Any:
    """Return all of a block, bit for bit."""
    layout, rows, leaves = describe(block.tree, whole=True)
    content = [_bits(*pair) for pair in zip(array_nodes(layout), leaves, strict=True)]
    ids, kept = (None if each is None else each.tolist() for each in (block.ids, block.kept))
    return block.sample, block.rows, ids, kept, layout, rows, content


class SourceContract(ABC):
    """Tests of a source; a subclass named ``Test...`` runs them.

    Attributes:
        keeps_workers: Whether its workers live from pass to pass (``persistent_workers``).
        works_for_good: Whether ``work_here`` changes the process, so that the tests call it in a child.
    """

    keeps_workers = False
    works_for_good = False

    @abstractmethod
    def make(self, seed: int = 0) -> Source:
        """Make a source of some hundred samples in several blocks; each call gives an equal one."""

    @abstractmethod
    def expected(self) -> Counter[Any]:
        """Return what ``rows_of`` gives over all blocks of a cycle."""

    @pytest.fixture(autouse=True)
    def close_sources(self) -> Iterator[None]:
        """Close every source of the test at its end."""
        self._sources: list[Source] = []
        yield
        for source in self._sources:
            source.close()

    def rows_of(self, tree: Tree) -> list[Any]:
        """Return what identifies each sample of a block; here the leaf ``id``."""
        return np.asarray(tree["id"]).tolist()

    def test_a_cycle_is_every_sample_once(self) -> None:
        source = self._made()
        for cycle in (0, 1, 5):
            assert Counter(self._ids(source, cycle)) == self.expected()

    def test_blocks_follow_one_another_and_sum_to_what_it_says(self) -> None:
        source = self._made()
        blocks = _blocks(source, Cursor(0, 0))
        sample = 0
        for block in blocks:
            assert block.sample == sample
            assert block.rows == len(self.rows_of(block.tree)) == describe(block.tree).rows > 0
            sample += block.rows
        assert source.samples in (None, sample)
        assert source.batches in (None, len(blocks))
        if source.batch_size is not None:
            assert max(block.rows for block in blocks) == source.batch_size

    def test_segments_begin_at_zero_and_rise(self) -> None:
        source = self._made()
        starts = source.segment_starts
        assert starts[0] == 0
        assert list(starts) == sorted(set(starts))
        assert source.samples is not None or starts == (0,)
        assert source.samples is None or starts[-1] < source.samples
        assert source.description

    def test_no_block_crosses_the_start_of_a_segment(self) -> None:
        source = self._made()
        for cycle in (0, 1):
            starts = {block.sample for block in _blocks(source, Cursor(cycle, 0))}
            assert starts >= set(source.segment_starts)

    def test_every_segment_has_the_same_samples_in_every_cycle(self) -> None:
        source = self._made()
        first, *others = (self._segments(source, cycle) for cycle in (0, 1, 2, 7))
        for other in others:
            assert other == first

    @pytest.mark.parametrize("cycle", [0, 1, 3])
    def test_it_opens_with_the_block_that_holds_the_position_and_goes_on_as_ever(self, cycle: int) -> None:
        source = self._made()
        whole = _blocks(source, Cursor(cycle, 0))
        total = whole[-1].sample + whole[-1].rows
        edges = {whole[len(whole) // 2].sample, source.segment_starts[-1], total - 1}
        for sample in sorted({0, 1, *edges, *(edge - 1 for edge in edges if edge)}):
            rest = _blocks(source, Cursor(cycle, sample))
            assert rest[0].sample <= sample < rest[0].sample + rest[0].rows
            self._assert_same(rest, [block for block in whole if block.sample + block.rows > sample])

    def test_what_a_cycle_gives_does_not_depend_on_what_was_opened_before(self) -> None:
        one, other = self._made(), self._made()
        ahead = [_blocks(one, Cursor(cycle, 0)) for cycle in (0, 1, 2)]
        back = [_blocks(other, Cursor(cycle, 0)) for cycle in (2, 1, 0)]
        for blocks, again in zip(ahead, reversed(back), strict=True):
            self._assert_same(again, blocks)

    def test_the_same_seed_gives_the_same_order(self) -> None:
        for cycle in (0, 1):
            one, other = (_blocks(self._made(3), Cursor(cycle, 0)) for _ in range(2))
            self._assert_same(one, other)

    def test_its_order_has_a_name_that_another_order_does_not_have(self) -> None:
        one, equal, other = self._made(), self._made(), self._made(3)
        name = getattr(one, "order", "")
        if not name:
            pytest.skip("this source does not name its order")
        assert getattr(equal, "order", "") == name
        if any(self._ids(one, cycle) != self._ids(other, cycle) for cycle in (0, 1)):
            assert getattr(other, "order", "") != name

    def test_a_pass_that_is_broken_off_releases_what_it_held(self) -> None:
        source = self._made()
        before = _children()
        iterator = source.open(Cursor(0, 0))
        with closing(iterator):  # type: ignore[type-var]
            next(iterator)
        assert self.keeps_workers or _children() <= before
        for cycle in (0, 1):  # and it can be opened again
            _blocks(source, Cursor(cycle, 0))
        assert self.keeps_workers or _children() <= before
        source.close()
        assert _children() <= before

    def test_blocks_that_are_written_into_slots_are_the_same(self) -> None:
        plain, source = self._made(), self._made()
        if not isinstance(source, SlotSource):
            pytest.skip("this source leaves the copying to the feeder")
        with closing(WritableHostRing.create(1 << 22)) as ring, closing(Slots(ring)) as slots:
            of_use = source.fill(slots)
            offered = [Slot(i << 20, 1 << 20) for i in range(4)]
            for cycle in (0, 1):
                for slot in offered:
                    slots.offer(slot)
                blocks = list(_read_back(source, cycle, slots, of_use))
                self._assert_same(blocks, _blocks(plain, Cursor(cycle, 0)))
                left = [slots.take() for _ in offered]
                assert sorted(slot for slot in left if slot) == offered, "a slot was lost"
            source.close()  # before the ring that it reads into

    def test_the_ids_of_a_cycle_are_each_sample_once_and_always_of_the_same_rows(self) -> None:
        source = self._made()
        if not getattr(source, "selects", False):
            pytest.skip("this source does not name its samples")
        named = [self._named(_blocks(source, Cursor(cycle, 0))) for cycle in (0, 1)]
        assert source.samples is not None
        assert sorted(named[0]) == list(range(source.samples))
        assert named[0] == named[1]

    def test_of_each_block_only_what_is_wanted_is_loaded(self) -> None:
        source: Any = self._made()
        if not getattr(source, "selects", False):
            pytest.skip("this source cannot leave samples out")
        named = self._named(_blocks(source, Cursor(0, 0)))
        none = some = all_of_it = 0
        asked: list[int] = []

        def wanted(sample: int, ids: Ids) -> Any:
            asked.append(sample)
            if sample == all_of_it:
                return None
            return ids < 0 if sample == none else ids % (3 if sample == some else 2) == 0

        for cycle in (0, 1):
            full = _blocks(source, Cursor(cycle, 0))
            none, some, all_of_it = full[0].sample, full[1].sample, full[-1].sample
            asked.clear()
            blocks = _blocks(source, Cursor(cycle, 0), wanted)
            assert asked == [block.sample for block in blocks] == [block.sample for block in full]
            assert [block.rows for block in blocks] == [block.rows for block in full]
            for block, complete in zip(blocks, full, strict=True):
                assert block.ids is not None and complete.ids is not None
                mask = wanted(complete.sample, complete.ids)
                selected = np.arange(complete.rows) if mask is None else np.flatnonzero(mask)
                assert block.ids.tolist() == complete.ids[selected].tolist()
                assert (block.kept is None) == (len(selected) == complete.rows)
                assert block.kept is None or block.kept.tolist() == selected.tolist()
                rows = [] if block.tree is None else self.rows_of(block.tree)
                assert rows == [named[id] for id in block.ids.tolist()]
            assert blocks[0].tree is None

    def test_a_cycle_keeps_together_what_joints_have_cut_the_one_before_into(self) -> None:
        source: Any = self._made()
        if not getattr(source, "joins", False) or not getattr(source, "shuffled", True):
            pytest.skip("epochs of this source cannot begin at any block, or without a joint")
        order = [block.sample for block in _blocks(source, Cursor(0, 0))]
        if hasattr(source, "starts"):
            assert {*order}.issuperset(source.starts(0, NO_JOINTS))
            order = source.starts(0, NO_JOINTS)
        place = next(sample for sample in order[1:] if sample not in source.segment_starts)
        joints = Joints(((1, (place,)), (3, ())))
        cycles = [self._ids(source, cycle, joints) for cycle in range(4)]
        assert cycles[0] == self._ids(source, 0, NO_JOINTS)
        assert cycles[3] == self._ids(source, 3, NO_JOINTS)
        for before, cycle in pairwise(cycles[:3]):
            assert Counter(cycle[:place]) == Counter(before[:place])
            assert Counter(cycle) == self.expected()

    @pytest.mark.parametrize("all_of_it", [True, False])
    def test_each_block_is_the_same_whoever_loads_it_from_its_plan_alone(self, all_of_it: bool) -> None:
        source: Any = self._made()
        if not hasattr(source, "plans") or not (all_of_it or source.selects):
            pytest.skip("this source does not plan its blocks, or cannot leave samples out")
        wanted = None if all_of_it else _two_of_three
        plans = [(plan, cycle) for cycle in (0, 1) for plan in source.plans(Cursor(cycle, 0), wanted)]
        random.Random(0).shuffle(plans)
        made_by_others = self._loaded_elsewhere(plans)
        for cycle in (0, 1):
            blocks = list(source.load(source.plans(Cursor(cycle, 0), wanted), cycle))
            for block in blocks:
                assert made_by_others[cycle, block.sample] == bits_of(block)
            if not hasattr(source, "order_by_block"):
                opened = _blocks(source, Cursor(cycle, 0), wanted)
                assert [*map(bits_of, opened)] == [*map(bits_of, blocks)]
        assert getattr(source, "order_by_block", "") != source.order

    def _loaded_elsewhere(self, plans: list[tuple[Planned, int]]) -> dict[tuple[int, int], Any]:
        """Load blocks one by one by a second source, without workers; return them by cycle and first sample."""
        plans = pickle.loads(pickle.dumps(plans))

        def load() -> bytes:
            other: Any = self._made()
            other.work_here()
            return pickle.dumps({(cycle, plan.sample): _loaded(other, plan, cycle) for plan, cycle in plans})

        if not self.works_for_good:
            return pickle.loads(load())
        answer = ForkedCall(load, limit_s=_HANG_S).answer(wait_s=_HANG_S)
        assert answer, "another process could not load them"
        return pickle.loads(answer)

    def test_a_pass_that_was_never_begun_holds_nothing(self) -> None:
        before = _children()
        source = self._made()
        source.open(Cursor(0, 0)).close()  # type: ignore[attr-defined]
        assert _children() <= before
        assert Counter(self._ids(source, 0)) == self.expected()

    def _named(self, blocks: list[SourceBlock]) -> dict[int, Any]:
        """Return what identifies each row, by its id."""
        named: dict[int, Any] = {}
        for block in blocks:
            assert block.ids is not None and block.kept is None
            named.update(zip(block.ids.tolist(), self.rows_of(block.tree), strict=True))
        return named

    def _made(self, seed: int = 0) -> Source:
        self._sources.append(self.make(seed))
        return self._sources[-1]

    def _ids(self, source: Source, cycle: int, *joints: Joints) -> list[Any]:
        """Return what identifies each sample of a cycle, in its order."""
        more = (None, *joints) if joints else ()
        return [row for block in _blocks(source, Cursor(cycle, 0), *more) for row in self.rows_of(block.tree)]

    def _segments(self, source: Source, cycle: int) -> list[Counter[Any]]:
        """Count the samples of each segment of a cycle."""
        found: list[Counter[Any]] = [Counter[Any]() for _ in source.segment_starts]
        for block in _blocks(source, Cursor(cycle, 0)):
            i = int(np.searchsorted(source.segment_starts, block.sample, side="right")) - 1
            found[i].update(self.rows_of(block.tree))
        return found

    def _assert_same(self, blocks: list[SourceBlock], others: list[SourceBlock]) -> None:
        assert [(b.sample, b.rows) for b in blocks] == [(b.sample, b.rows) for b in others]
        for block, other in zip(blocks, others, strict=True):
            assert self.rows_of(block.tree) == self.rows_of(other.tree)


def _blocks(source: Any, at: Cursor, *more: Wanted | Joints | None) -> list[SourceBlock]:
    with closing(source.open(at, *more)) as blocks:
        return list(blocks)


def _two_of_three(sample: int, ids: Ids) -> Any:
    return ids % 3 != sample % 2


def _loaded(source: Any, plan: Planned, cycle: int) -> Any:
    (block,) = source.load(iter([plan]), cycle)
    return bits_of(block)


def _bits(node: Node, leaf: Any) -> Any:
    if isinstance(node, Array):
        return bytes_of(node, leaf).tobytes()
    if isinstance(node, Ragged):
        return leaf.lengths.tolist(), bytes_of(node.items, leaf.values).tobytes()
    return leaf


def _read_back(source: Any, cycle: int, slots: Slots, of_use: int) -> Iterator[SourceBlock]:
    """Yield a cycle's blocks, each copied from its slot, which is offered again."""
    with closing(source.open(Cursor(cycle, 0))) as blocks:
        for i, block in enumerate(blocks):
            there = block.tree
            assert isinstance(there, Filled) or i > 0 or not of_use, "a slot was on offer"
            if isinstance(there, Filled):
                yield SourceBlock(block.sample, block.rows, read_back(there, slots))
                slots.offer(there.slot)
            else:
                yield block


def _children() -> set[str]:
    """Return the pids of this process's children that still run."""
    found: set[str] = set()
    for task in os.listdir("/proc/self/task"):
        with suppress(OSError):  # a thread that has just ended
            found.update(Path(f"/proc/self/task/{task}/children").read_text().split())
    return found
