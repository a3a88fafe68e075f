"""No history of a cluster loses a block, gives one twice, or waits for a node that does not answer."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.examples import examples

from penstock.sources.remote.nodes import QUEUED, NodeReport, Nodes, WorkerId

CORES = {"a": 1, "b": 2, "c": 3, "d": 0}
"""Nodes that come and go, and the workers of each."""
STARTS_S = 60.0
FIRST_S, LEAST_S, TIMES_USUAL = 2.0, 1.0, 5.0


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
        for id in self.nodes.starting_too_long(self.now_s):
            assert self.now_s >= self.workers[id].since_s + STARTS_S
            del self.workers[id]
            self.nodes.failed(id, "it does not start", self.now_s)
        for id in self.nodes.to_start(self.now_s):
            assert id not in self.workers
            assert id.node in self.cores
            self.workers[id] = Worker(since_s=self.now_s)
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
            assert as_it_is.to_start(before_s) == as_it_is.starting_too_long(before_s) == []
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
TestClusterMachine.settings = settings(max_examples=examples(75), stateful_step_count=50)
