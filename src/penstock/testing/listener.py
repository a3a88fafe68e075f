"""The contract of a listener: what it returns at each tick, of runs that come and go."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator

import pytest

from penstock.runs.listeners.contract import Listener, Sample, Tick, Tree, WatchedRun
from penstock.runs.store.points import check_name

_NOBODY = 2**22 + 1
"""Above every process number that Linux gives."""


class ListenerContract(ABC):
    """Tests of a listener; a subclass named ``Test...`` runs them."""

    @abstractmethod
    def make(self) -> Listener:
        """Make the listener, so that it can run here."""

    @pytest.fixture(autouse=True)
    def made(self) -> Generator[None]:
        self.listener = self.make()
        self.ticks = 0
        yield
        self.listener.close()

    def tick(self, *ids: str, pids: tuple[int, ...] = ()) -> Sample:
        """Ask the listener at the next second, of runs that have these processes."""
        self.ticks += 1
        runs = tuple(WatchedRun(id, index, (_NOBODY, 1), _NOBODY) for index, id in enumerate(ids))
        cpu_s = float(self.ticks)
        trees = {id: Tree(pids, cpu_s, self.ticks << 20, self.ticks << 20, 1 << 20, 2) for id in ids}
        return self.listener.sample(Tick(1e9 + self.ticks, runs, trees, 4 * cpu_s))

    def test_it_has_a_name_and_can_run(self) -> None:
        assert self.listener.name
        assert "." not in self.listener.name
        assert self.listener.unavailable() is None

    def test_its_series_have_names_that_can_be_kept_and_begin_with_its_own(self) -> None:
        for _ in range(3):
            sample = self.tick("a", "b")
            for values in (sample.host, *sample.runs.values()):
                for name in (*values.counters, *values.gauges):
                    check_name(name)
                    assert name.startswith(f"{self.listener.name}.")

    def test_a_series_is_a_counter_or_a_gauge_of_a_run_or_of_the_host(self) -> None:
        kinds: dict[str, str] = {}
        for _ in range(3):
            sample = self.tick("a", "b")
            for whose, each in (("host", sample.host), *(("run", values) for values in sample.runs.values())):
                for kind, values in (("counter", each.counters), ("gauge", each.gauges)):
                    for name in values:
                        assert kinds.setdefault(name, f"{kind} of a {whose}") == f"{kind} of a {whose}"

    def test_its_values_are_numbers(self) -> None:
        for _ in range(3):
            sample = self.tick("a", "b")
            for each in (sample.host, *sample.runs.values()):
                assert all(math.isfinite(value) for value in (*each.counters.values(), *each.gauges.values()))

    def test_its_counters_never_fall(self) -> None:
        before: dict[tuple[str, str], float] = {}
        for _ in range(5):
            sample = self.tick("a", "b")
            for whose, values in (("", sample.host), *sample.runs.items()):
                for name, value in values.counters.items():
                    assert value >= before.get((whose, name), 0.0)
                    before[whose, name] = value

    def test_it_tells_only_of_runs_that_it_was_asked_for(self) -> None:
        assert not self.tick().runs
        assert set(self.tick("a", "b").runs) <= {"a", "b"}
        assert set(self.tick("b").runs) <= {"b"}
        assert set(self.tick("c", "b").runs) <= {"c", "b"}
        assert not self.tick().runs

    def test_a_process_that_is_gone_is_no_error(self) -> None:
        for _ in range(3):
            self.tick("a", pids=(_NOBODY, _NOBODY + 1))
