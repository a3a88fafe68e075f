"""No history of a cluster loses a block, gives one twice, or waits for a node that does not answer."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.examples import examples

from penstock.sources.remote.nodes import QUEUED, NodeReport, Nodes, WorkerId

CORES = {"a": 1, "b": 2, "c": 3, "d": 0}
"""Nodes that come and go, and the workers of each."""
FIRST_S, LEAST_S, TIMES_USUAL = 10.0, 1.0, 5.0


@dataclass
class Worker:
    """What a worker of the cluster does."""

    ready: bool = False
    has: list[int] = field(default_factory=list[int])
    since_s: float = 0.0


class ClusterMachine(RuleBasedStateMachine):
    """A cluster in which anything happens, and what its bridge does after each event."""

    @initialize(most=st.none() | st.integers(1, 5))
    def make(self, most: int | None) -> None:
        self.nodes = Nodes(most)
        self.most = most
        self.now_s = 0.0
        self.cores: dict[str, int] = {}
        self.workers: dict[WorkerId, Worker] = {}
        self.asked: list[tuple[WorkerId, int]] = []
        """Questions that were not answered, of workers that are gone, too."""
        self.answered: list[tuple[WorkerId, int]] = []
        self.numbers = count()
        self.open: set[int] = set()
        self.failed_on: dict[int, set[str]] = {}

    @precondition(lambda self: len(self.cores) < len(CORES))
    @rule(data=st.data())
    def a_node_joins(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(CORES.keys() - self.cores.keys())))
        self.cores[name] = CORES[name]
        assert self.nodes.see(self.cores) == []
        self.act()

    @precondition(lambda self: self.cores)
    @rule(data=st.data())
    def a_node_leaves(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.cores)))
        del self.cores[name]
        gone = self.nodes.see(self.cores)
        running = {id for id in self.workers if id.node == name}
        assert running <= {*gone}
        for id in running:
            del self.workers[id]
        self.act()

    @precondition(lambda self: self.starting())
    @rule(data=st.data())
    def a_worker_is_ready(self, data: st.DataObject) -> None:
        self.begin(data.draw(st.sampled_from(self.starting())))
        self.act()

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def a_worker_fails(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.workers)))
        worker = self.workers.pop(id)
        if worker.has and worker.has[0] in self.open:
            self.failed_on.setdefault(worker.has[0], set()).add(id.node)
        self.nodes.failed(id, "it has died", self.now_s)
        self.act()

    @rule(more=st.integers(1, 6))
    def blocks_are_asked_for(self, more: int) -> None:
        for _ in range(more):
            number = next(self.numbers)
            self.open.add(number)
            self.nodes.add(number)
        self.act()

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), after_s=st.sampled_from([0.0, 0.0, 0.1, 0.7]))
    def a_block_comes(self, data: st.DataObject, after_s: float) -> None:
        self.pass_time(self.now_s + after_s)
        self.come(*data.draw(st.sampled_from(self.asked)))
        self.act()

    @precondition(lambda self: self.answered)
    @rule(data=st.data())
    def a_block_comes_again(self, data: st.DataObject) -> None:
        id, number = data.draw(st.sampled_from(self.answered))
        assert self.nodes.came(id, number, self.now_s) == (number in self.open)
        self.open.discard(number)
        self.act()

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def a_block_fails(self, data: st.DataObject) -> None:
        id, number = data.draw(st.sampled_from(self.asked))
        self.asked.remove((id, number))
        self.nodes.raised(id, number, "it is torn", self.now_s)
        if self.was_at_hand(id, number):
            assert self.report(id.node).aside in ("", "it is torn")
        if number in self.open:
            self.failed_on.setdefault(number, set()).add(id.node)
        self.act()

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 5.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.pass_time(self.now_s + seconds)
        self.act()

    @rule()
    def time_passes_until_something_is_due(self) -> None:
        if (due_s := self.nodes.due_s()) is not None:
            self.pass_time(max(self.now_s, due_s))
        self.act()

    @rule()
    def all_is_forgotten(self) -> None:
        self.nodes.forget()
        self.open.clear()
        self.failed_on.clear()
        self.act()

    @precondition(lambda self: self.most is None and {"b", "c"} <= self.cores.keys())
    @rule(frozen=st.sampled_from([{"a", "b"}, {"a", "c"}]))
    def all_is_made_while_nodes_are_frozen(self, frozen: set[str]) -> None:
        self.finish(frozen)

    def teardown(self) -> None:
        if hasattr(self, "nodes"):
            self.cores["c"] = CORES["c"]
            self.nodes.see(self.cores)
            self.finish(set())
            assert not self.nodes.unmade()

    def finish(self, frozen: set[str]) -> None:
        """Let everything come that is asked for, but of some nodes."""
        for _ in range(200):
            self.act()
            if not self.open:
                return
            starting = [id for id in self.starting() if id.node not in frozen]
            answers = [(id, number) for id, number in self.asked if id.node not in frozen and id in self.workers]
            for id in starting:
                self.begin(id)
            for id, number in answers:
                self.come(id, number)
            if not (starting or answers):
                due_s = self.nodes.due_s()
                assert due_s is not None, "it would wait for ever"
                self.pass_time(due_s)
        raise AssertionError(f"{self.open} never came")

    def act(self) -> None:
        """Do what the bridge does, and check it."""
        self.nodes.look(self.now_s)
        for node in self.nodes.reports():
            late = [each for id, each in self.workers.items() if id.node == node.node and self.is_late(node, each)]
            assert node.aside or not late
        for id in self.nodes.to_start(self.now_s):
            assert id not in self.workers
            assert id.node in self.cores
            self.workers[id] = Worker()
        assert self.most is None or len(self.workers) <= self.most
        for id, number in self.nodes.to_ask(self.now_s):
            worker = self.workers[id]
            assert worker.ready
            assert not self.report(id.node).aside
            assert number in self.open
            assert number not in worker.has
            assert id.node not in self.failed_on.get(number, ())
            if not worker.has:
                worker.since_s = self.now_s
            worker.has.append(number)
            assert len(worker.has) <= QUEUED
            self.asked.append((id, number))
        for number, why in self.nodes.unmade():
            assert why
            assert self.failed_on.pop(number)
            self.open.remove(number)
        assert self.nodes.open_blocks == len(self.open)
        due_s = self.nodes.due_s()
        assert due_s is None or due_s > self.now_s, "it would not wait"

    def pass_time(self, until_s: float) -> None:
        """Let time pass, in which nothing is to be done before it is due."""
        due_s = self.nodes.due_s()
        before_s = until_s if due_s is None else min(until_s, due_s - 1e-6)
        if before_s > self.now_s:
            as_it_is = deepcopy(self.nodes)
            as_it_is.look(before_s)
            assert as_it_is.reports() == self.nodes.reports()
            assert as_it_is.to_start(before_s) == []
        self.now_s = until_s

    def come(self, id: WorkerId, number: int) -> None:
        self.asked.remove((id, number))
        self.answered.append((id, number))
        assert self.nodes.came(id, number, self.now_s) == (number in self.open)
        self.open.discard(number)
        if self.was_at_hand(id, number):
            assert not self.report(id.node).aside

    def begin(self, id: WorkerId) -> None:
        self.workers[id].ready = True
        self.nodes.ready(id)

    def starting(self) -> list[WorkerId]:
        return sorted(id for id, worker in self.workers.items() if not worker.ready)

    def was_at_hand(self, id: WorkerId, number: int) -> bool:
        """Take a block from a worker; whether that is one of the cluster."""
        if (worker := self.workers.get(id)) is None:
            return False
        worker.has.remove(number)
        worker.since_s = self.now_s
        return True

    def report(self, node: str) -> NodeReport:
        return next(each for each in self.nodes.reports() if each.node == node)

    def is_late(self, node: NodeReport, worker: Worker) -> bool:
        deadline_s = FIRST_S if node.usual_s is None else max(LEAST_S, TIMES_USUAL * node.usual_s)
        return bool(worker.has) and self.now_s >= worker.since_s + deadline_s


TestClusterMachine = ClusterMachine.TestCase
TestClusterMachine.settings = settings(max_examples=examples(150), stateful_step_count=50)


def cluster(most: int | None = None, **cores: int) -> Nodes:
    """Nodes of these cores, all of whose workers are ready."""
    nodes = Nodes(most)
    nodes.see(cores)
    for id in nodes.to_start(0.0):
        nodes.ready(id)
    return nodes


def asked(nodes: Nodes, numbers: Iterable[int], now_s: float = 0.0) -> dict[int, WorkerId]:
    """Ask for blocks; return who makes each of them."""
    for number in numbers:
        nodes.add(number)
    return {number: id for id, number in nodes.to_ask(now_s)}


def aside(nodes: Nodes) -> dict[str, str]:
    return {each.node: each.aside for each in nodes.reports() if each.aside}


def used_to(nodes: Nodes, seconds: float) -> None:
    """Have each worker make a block in this time."""
    for number, id in asked(nodes, range(1000, 1000 + nodes.ready_workers)).items():
        assert nodes.came(id, number, seconds)


def test_blocks_go_to_every_worker_before_any_has_two() -> None:
    nodes = cluster(a=2, b=1)
    assert len({*asked(nodes, range(3)).values()}) == 3
    assert len(asked(nodes, range(3, 10))) == 3
    assert nodes.open_blocks == 10


def test_few_workers_are_spread_over_the_nodes() -> None:
    nodes = Nodes(4)
    nodes.see({"a": 8, "b": 8, "c": 1})
    assert [id.node for id in nodes.to_start(0.0)] == ["a", "b", "c", "a"]
    assert nodes.to_start(0.0) == []
    assert nodes.due_s() is None, "no other is to be started"


def test_where_no_more_workers_may_be_the_place_of_one_that_failed_is_another_nodes() -> None:
    nodes = Nodes(1)
    nodes.see({"a": 2, "b": 2})
    started: list[str] = []
    for second in range(3):
        (id,) = nodes.to_start(float(second))
        started.append(id.node)
        nodes.failed(id, "it has other data", float(second))
    assert started == ["a", "a", "b"]


def test_a_node_that_is_late_is_set_aside_at_its_deadline_and_another_makes_its_blocks() -> None:
    nodes = cluster(a=1, b=1)
    used_to(nodes, 0.1)
    makers = asked(nodes, [0, 1], 5.0)
    assert nodes.due_s() == 6.0
    late = makers[0]
    nodes.came(makers[1], 1, 5.2)
    nodes.look(5.999)
    assert not aside(nodes)
    nodes.look(6.0)
    assert aside(nodes) == {late.node: "it has not answered for 1.0 s"}
    assert nodes.to_ask(6.0) == [(makers[1], 0)]


def test_a_slow_node_has_five_times_what_is_usual_there() -> None:
    nodes = cluster(a=1)
    used_to(nodes, 2.0)
    asked(nodes, [0], 100.0)
    assert nodes.due_s() == 110.0


def test_a_node_of_which_nothing_is_known_has_ten_seconds() -> None:
    nodes = cluster(a=1)
    asked(nodes, [0], 3.0)
    nodes.look(12.9)
    assert not aside(nodes)
    nodes.look(13.0)
    assert aside(nodes)
    assert nodes.ready_workers == 0


def test_a_node_is_good_again_when_it_answers_and_its_late_block_counts_once() -> None:
    nodes = cluster(a=1, b=1)
    used_to(nodes, 0.1)
    (late,) = asked(nodes, [0], 5.0).values()
    nodes.look(6.0)
    ((other, _),) = nodes.to_ask(6.0)
    assert nodes.came(late, 0, 7.0)
    assert not aside(nodes)
    assert not nodes.came(other, 0, 7.1)
    assert nodes.open_blocks == 0


def test_a_node_is_set_aside_after_three_failures_in_a_row_and_tried_again_later() -> None:
    nodes = cluster(a=2, b=1)
    makers = asked(nodes, range(6))
    torn = [number for number, id in makers.items() if id.node == "a"]
    for number in torn[:3]:
        assert not aside(nodes)
        nodes.raised(makers[number], number, "EIO", 1.0)
    assert aside(nodes) == {"a": "EIO"}
    nodes.raised(makers[torn[3]], torn[3], "EIO", 1.0)
    for number in makers.keys() - torn:
        nodes.came(makers[number], number, 1.0)
    assert nodes.due_s() == 31.0
    nodes.look(30.9)
    assert aside(nodes) == {"a": "EIO"}
    assert [*asked(nodes, [], 30.9)] == torn[:2], "by the other node, in their order"
    nodes.look(31.0)
    assert not aside(nodes)


def test_a_worker_that_starts_does_not_end_the_time_for_which_its_node_is_set_aside() -> None:
    nodes = Nodes()
    nodes.see({"a": 2})
    first, second = nodes.to_start(0.0)
    nodes.ready(first)
    for number in range(3):
        assert asked(nodes, [number]) == {number: first}
        nodes.raised(first, number, "EIO", 0.0)
    nodes.ready(second)
    assert aside(nodes) == {"a": "EIO"}


def test_a_block_that_fails_on_one_node_is_made_by_another() -> None:
    nodes = cluster(a=2, b=1)
    (first,) = asked(nodes, [0]).values()
    nodes.raised(first, 0, "EIO", 0.0)
    ((second, _),) = nodes.to_ask(0.0)
    assert second.node != first.node
    assert nodes.came(second, 0, 0.1)
    assert nodes.unmade() == []


@pytest.mark.parametrize("cores", [{"a": 2}, {"a": 1, "b": 1, "c": 1}])
def test_a_block_that_fails_on_two_nodes_or_on_all_that_there_are_is_given_up(cores: dict[str, int]) -> None:
    nodes = cluster(**cores)
    makers = asked(nodes, [0])
    while makers:
        nodes.raised(makers[0], 0, f"EIO on {makers[0].node}", 0.0)
        makers = asked(nodes, [])
    failed_last = "a" if len(cores) == 1 else "b"
    assert nodes.unmade() == [(0, f"EIO on {failed_last}")]
    assert nodes.unmade() == []
    assert nodes.open_blocks == 0


def test_a_block_that_kills_its_worker_on_two_nodes_is_given_up() -> None:
    nodes = cluster(a=2, b=2, c=2)
    makers = asked(nodes, range(6))
    nodes.failed(makers[0], "killed by signal 11", 0.0)
    again = asked(nodes, [])
    assert again[0].node != makers[0].node
    assert nodes.unmade() == []
    nodes.came(again[0], next(number for number, id in makers.items() if id == again[0]), 0.1)
    nodes.failed(again[0], "killed by signal 11", 0.2)
    assert nodes.unmade() == [(0, "killed by signal 11")]
    assert nodes.open_blocks == 4


def test_a_worker_that_is_idle_does_not_stay_aside_when_the_one_that_was_late_has_died() -> None:
    nodes = cluster(2, a=3)
    used_to(nodes, 0.1)
    (late,) = asked(nodes, [0], 5.0).values()
    nodes.look(6.0)
    assert aside(nodes)
    nodes.failed(late, "killed", 7.0)
    assert not aside(nodes)
    assert nodes.ready_workers == 1


def test_a_node_whose_workers_never_start_is_tried_every_thirty_seconds_for_ever() -> None:
    nodes = Nodes()
    nodes.see({"a": 1})
    now_s = 0.0
    waits: list[float] = []
    for _ in range(1200):
        due_s = nodes.due_s()
        assert due_s is not None
        waits.append(due_s - now_s)
        now_s = max(now_s, due_s)
        (id,) = nodes.to_start(now_s)
        nodes.failed(id, "it has other data", now_s)
        assert aside(nodes) == {"a": "it has other data"}
    assert waits[:8] == [0, 0, 2, 4, 8, 16, 30, 30]
    assert waits[-1] == 30


def test_what_is_forgotten_is_neither_given_nor_asked_of_another() -> None:
    nodes = cluster(a=1, b=1)
    makers = asked(nodes, range(8))
    nodes.forget()
    nodes.look(20.0)
    assert nodes.to_ask(20.0) == []
    assert len(aside(nodes)) == 2, "they may still be at it"
    assert {nodes.came(id, number, 21.0) for number, id in makers.items()} == {False}
    assert not aside(nodes)
    nodes.raised(makers[0], 0, "EIO", 21.0)
    assert nodes.unmade() == []
