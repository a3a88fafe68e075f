"""A schedule as it stands: who waits, who runs, what is believed, and the plan for what is to come."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, cast

from msgspec.structs import replace

from penstock.errors import NoSuchRun
from penstock.feed.launch.feeds import feeds
from penstock.gpus.nvml import users_hidden
from penstock.linux.files import taken
from penstock.linux.process import with_descendants
from penstock.runs.record import ENDED, RunRecord, Status
from penstock.runs.store import Store
from penstock.schedule.estimates import Estimates
from penstock.schedule.jobs import SPARE, GpuMachine, HostMachine, Job, strangers_bytes
from penstock.schedule.ledger import Entry, Expected, Ledger
from penstock.schedule.partition import Placed
from penstock.schedule.planner import Planner, PolicyPlan
from penstock.schedule.profiles import data_of
from penstock.schedule.simulate import Running
from penstock.schedule.usage import UsageWindow, usage_of

_ANSWER_S = 0.5
_HELD = "keeper.lock"
_NEARLY_S = 1.0


class PresentPlan(NamedTuple):
    """What is to come, as the newest plan has it."""

    chosen: PolicyPlan  # the plan; its jobs are ``names``, in their order
    names: list[str]  # those of the runs that had not ended
    jobs: list[Job]  # what was believed of each
    running: list[Running]  # those that ran
    model: GpuMachine  # the machine, as it was
    at_s: float  # when it was made, in seconds from the schedule's start
    guesses: list[bool]  # whether the length of each is a guess

    def placed(self, names: Sequence[str], entries: Mapping[str, Entry]) -> list[Placed]:
        """Return some of the runs where they run."""
        jobs = dict(zip(self.names, self.jobs, strict=True))
        return [Placed.on(jobs[name], entries[name].gpus, self.model) for name in names]

    def left(self) -> dict[str, float]:
        """Return the samples that each run has yet to train on."""
        return {name: job.samples for name, job in zip(self.names, self.jobs, strict=True)}

    def expected(self) -> list[Expected]:
        """Return when and where each run is to run, in seconds from the schedule's start."""
        found: dict[int, Expected] = {}
        guessed_s: dict[int | str, float] = {}  # by GPU, and by name, when the first run there ends by a guess
        for i, run in sorted(self.chosen.outcome.runs.items(), key=lambda each: each[1].start_s):
            rests = any(guessed_s.get(at, math.inf) <= run.start_s for at in (*run.gpus, *self.jobs[i].after))
            times_s = self.at_s + run.start_s, self.at_s + run.end_s
            found[i] = Expected(self.names[i], run.gpus, *times_s, rests, rests or self.guesses[i])
            if found[i].ends_by_guess:
                guessed_s |= {at: min(guessed_s.get(at, math.inf), run.end_s) for at in (*run.gpus, self.names[i])}
        return [found[i] for i in sorted(found)]


class LiveSchedule:
    """A schedule's runs, which of them run, and what is believed of them."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        machine: HostMachine,
        estimates: Estimates,
        needs: Mapping[str, frozenset[str]],
        planner: Callable[[GpuMachine, float], Planner],
    ) -> None:
        self.store = store  # where the runs are
        self.ledger = ledger
        ledger.gpus = machine.model.gpus if machine.has_gpus else 0
        self.machine = machine  # what they run on
        self.entries = {entry.name: entry for entry in ledger.entries}  # its runs, by name
        self.estimates = estimates  # what is believed of its runs
        self.profiles = estimates.profiles  # what was measured of runs, now and before
        self.watched: dict[str, UsageWindow] = {}  # the looks at the runs that run
        self.running: dict[str, RunRecord] = {}  # the records of those that run
        self.waiting: list[str] = []  # names of those that have yet to start
        self.data: dict[str, str] = {}  # what those that run were seen to read, as profiles name it
        self._ended: dict[str, RunRecord] = {}
        self.needs = needs  # by name, the runs that must end before one starts
        self._planner = planner
        """Makes a planner for the machine as it is; the number is the CPU-seconds that it may take."""
        self._began_s = time.monotonic() - max(0.0, time.time() - ledger.began_s)
        for entry in ledger.entries:
            record = self.record(entry)
            waits = record.status not in ENDED and record.status != "running"
            if record.status == "running" or (waits and entry.gpus and is_held(store, entry.id)):
                self.begin(entry, record)
            elif waits and not entry.is_left_out:
                self.waiting.append(entry.name)

    def record(self, entry: Entry) -> RunRecord:
        """Return the newest record of a run; one of our own, if it has none yet or somebody has removed it.

        One that waits for a scheduler that has died is not lost.
        """
        if known := self._ended.get(entry.id):
            return known
        status = entry.status or ("lost" if entry.id else "waiting")
        with suppress(NoSuchRun):
            record = self.store.run(entry.id)
            if record.status == "lost" and record.began is None:
                return replace(record, status="waiting")
            if record.status in ENDED:  # which never changes
                self._ended[record.id] = record
            return record
        return RunRecord(
            id=entry.id,
            name=entry.name,
            group=entry.group,
            group_id="",
            mode=entry.mode,
            index=entry.index,
            status=cast("Status", status),
            plan=entry.plan,
        )

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was first started."""
        return time.monotonic() - self._began_s

    def begin(self, entry: Entry, record: RunRecord) -> None:
        """Count a run among those that run."""
        self.running[entry.name] = record
        self.watched[entry.name] = UsageWindow()

    def look(self) -> None:
        """Look at the runs that go on."""
        known = feeds(_ANSWER_S)
        for name in self.running:
            record = self.running[name] = self.record(self.entries[name])
            if record.status == "running":
                newest = usage_of(self.store, record, known, on_gpus=bool(self.machine.devices))
                self.watched[name].add(newest)
                if newest.feed and not self.data.get(name):
                    self.data[name] = data_of(newest.feed.name, rf"{self.ledger.id}\d+")

    def unended(self) -> list[str]:
        return [*self.running, *self.waiting]

    def plan(self, most_s: float) -> PresentPlan:
        """Plan what is to come, in at most ``most_s`` CPU-seconds."""
        names, there = self.unended(), {*self.unended()}
        elapsed_s, model = self.elapsed_s, self._model()
        jobs = [
            self.estimates.job(self.entries[name], after=self.needs[name] & there, elapsed_s=elapsed_s)
            for name in names
        ]
        running = list[Running]()
        for i, name in enumerate(self.running):
            jobs[i] = replace(self.estimates.going_on(jobs[i], self.watched[name].newest), after=())
            running.append(Running(i, self.entries[name].gpus))
        chosen = self._planner(model, most_s).plan(jobs, running)
        guesses = [self.estimates.is_guess(self.entries[name]) for name in names]
        return PresentPlan(chosen, names, jobs, running, model, elapsed_s, guesses)

    def on_gpu(self, gpu: int, without: str = "") -> list[str]:
        """Name the runs that run on a GPU."""
        return [name for name in self.running if gpu in self.entries[name].gpus and name != without]

    def beside_at_end(self, entry: Entry, record: RunRecord) -> list[Entry]:
        """Return the runs that shared a GPU with one until it ended, or nearly."""
        ended_s = (record.began or 0.0) + (record.seconds or 0.0)
        records = [(other, self.record(other)) for other in self.ledger.entries if other is not entry]
        return [
            other
            for other, its in records
            if its.began is not None and not {*other.gpus}.isdisjoint(entry.gpus)
            if its.began <= ended_s <= its.began + (its.seconds or 0.0) + _NEARLY_S
        ]

    def neighbours(self, name: str) -> list[str]:
        """Name the runs that share a GPU with one."""
        return sorted({other for gpu in self.entries[name].gpus for other in self.on_gpu(gpu, without=name)})

    def _model(self) -> GpuMachine:
        """Return the machine without what others use, and without pairs that are never made again."""
        model = self.machine.model
        together = {
            frozenset((self.estimates.kind(self.entries[name]), self.estimates.kind(self.entries[other])))
            for name in self.running
            for other in self.neighbours(name)
        }
        apart = [pair for pair in self.profiles.incompatible() if frozenset(pair) not in together]
        pairs = {pair: 0.0 for one, other in apart for pair in ((one, other), (other, one))}
        if not self.machine.devices or users_hidden():
            return replace(model, pairs=pairs)
        ours = {gpu: self._processes(self.on_gpu(gpu)) for gpu in range(model.gpus)}
        others = strangers_bytes(self.machine.devices, ours)
        memories = tuple(m - SPARE * used for m, used in zip(model.memories, others, strict=True))
        return replace(model, pairs=pairs, memories=memories)

    def _processes(self, names: Iterable[str]) -> set[int]:
        pids = [self.running[name].pid for name in names]
        return {*with_descendants(pid for pid in pids if pid)}


def keeper_lock(store: Store, id: str) -> int:
    """Take the lock that a run's keeper holds for as long as anything of the run lives; return its descriptor."""
    return taken(store.folder_of(id) / _HELD, os.O_RDWR | os.O_CREAT)


def is_held(store: Store, id: str) -> bool:
    """Whether a keeper of a run lives, whatever the store says."""
    try:
        os.close(keeper_lock(store, id))
    except BlockingIOError:
        return True
    return False
