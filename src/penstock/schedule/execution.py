"""Runs a schedule: starts what the plan starts now, watches it, and plans again at each event."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress

from msgspec.structs import replace

from penstock.basics.terminal import say
from penstock.errors import PenstockError
from penstock.inject import TOGETHER
from penstock.linux.files import written_whole
from penstock.runs.launch.launcher import Launcher, RunEnded, RunEvent
from penstock.runs.modes.mode import Mode, opened
from penstock.runs.record import ENDED, RunRecord
from penstock.runs.stop import ask_to_end
from penstock.schedule.ledger import Entry, LedgerFile, once_more
from penstock.schedule.partition import rates_together
from penstock.schedule.present import Plan, Schedule, is_held, keeper_lock
from penstock.schedule.rates import Placed
from penstock.schedule.suffixes import feed_workers, suffixes
from penstock.schedule.watching import WINDOW_S, expect, slower_together

_TICK_S = 1.0
_RESTED_S = 10.0
"""Seconds between two plans where no run has come or gone."""


_FEED = "feed"


class Execution:
    """Brings a schedule to its end.

    Args:
        schedule: Its runs.
        records: Their records by id, as they are to be started, secrets included.
        file: Where the schedule is remembered.
        show: Called with what runs print, and when they end.
        tick: Called after each look; returns nothing.
    """

    def __init__(
        self,
        schedule: Schedule,
        records: Mapping[str, RunRecord],
        file: LedgerFile,
        *,
        show: Callable[[str, RunEvent], None],
        tick: Callable[[Plan], float | None],
    ) -> None:
        self._schedule = schedule
        self._records = dict(records)
        self._file = file
        self._show = show
        self._tick = tick
        self._names = {entry.id: entry.name for entry in schedule.ledger.entries}
        self._started: set[str] = set()  # by this process
        self._to_resume: set[str] = set()
        self._beside: dict[str, set[str]] = {}
        self._said: set[str] = set()
        self._could_not_start = False
        self._plan: Plan | None = None
        self._planned_s = -_RESTED_S

    def run(self) -> None:
        """Run all to their end. Those that run go on if this process ends."""
        schedule = self._schedule
        with ExitStack() as stack:
            launcher = stack.enter_context(Launcher(schedule.store, orphans="keep"))
            mode = self._mode(stack)
            for name in schedule.running:
                launcher.watch(schedule.entries[name].id, schedule.entries[name].listeners)
            self._end_dependents()
            while schedule.unended():
                if self._is_due():
                    self._plan_and_start(launcher, mode)
                assert self._plan
                self._hear(launcher, self._tick(self._plan))
                schedule.look()
                self._find_ended(launcher)
                self._learn()
            schedule.ledger.is_over = True
            self._keep()

    def _mode(self, stack: ExitStack) -> Mode:
        """Open the mode of all runs: under MPS, a daemon for each GPU."""
        schedule = self._schedule
        if schedule.machine.model.mode == "plain" or not schedule.machine.devices:
            return Mode()
        any_run = next(iter(self._records.values()))
        each = [replace(any_run, plan=replace(any_run.plan, devices=(uuid,))) for uuid in schedule.machine.devices]
        return stack.enter_context(opened("mps", each))

    def _is_due(self) -> bool:
        if self._plan is None or self._planned_s < 0:
            return True
        schedule = self._schedule
        if not schedule.waiting or time.monotonic() - self._planned_s < _RESTED_S:
            return False
        is_off = any(schedule.watched[name].is_off() for name in schedule.running)
        return is_off or self._could_not_start or not schedule.running or bool(schedule.machine.devices)

    def _plan_and_start(self, launcher: Launcher, mode: Mode) -> None:
        schedule, ledger = self._schedule, self._schedule.ledger
        is_first, self._could_not_start = self._plan is None, False
        self._plan = plan = schedule.plan(2.0 if is_first else 0.5)
        self._planned_s = time.monotonic()
        if is_first and not ledger.expected:
            ledger.expected = plan.expected()
        ledger.coming = plan.expected(schedule.elapsed_s)
        starts = [
            (plan.names[i], run.gpus)
            for i, run in plan.chosen.outcome.runs.items()
            if plan.names[i] in schedule.waiting and run.start_s <= 0
        ]
        for name, gpus in starts:
            schedule.entries[name].gpus = gpus
        self._divide(plan, [name for name, _ in starts])
        self._keep()
        for name, _ in starts:
            self._start(launcher, mode, name, plan, [other for other, _ in starts])
        if not schedule.running and schedule.waiting:
            self._say_once(
                f"nothing can start: {schedule.waiting[0]} and what waits with it find no room; others "
                "use the GPUs, or the memory"
            )

    def _divide(self, plan: Plan, starting: Sequence[str]) -> None:
        """Divide the runs that run from now on into feeds."""
        schedule = self._schedule
        number = {name: i for i, name in enumerate(plan.names)}
        names = [*schedule.running, *starting]
        placed = [Placed.on(plan.jobs[number[n]], schedule.entries[n].gpus, plan.model) for n in names]
        left = [plan.jobs[number[n]].samples for n in names]
        rates, _, parts = rates_together(placed, left, 0, plan.model, plan.chosen.sharing)
        now = {name: schedule.entries[name].feed for name in names}
        new = suffixes([[names[i] for i in part] for part in parts], now, schedule.ledger.new_feed)
        for name, suffix in new.items():
            if suffix != schedule.entries[name].feed or name in starting:
                schedule.entries[name].feed = suffix
                self._write_feed(name)
        for name in schedule.running:
            schedule.watched[name].begin_anew()
        going_on = len(schedule.running)
        expect(schedule.watched, placed[:going_on], rates[:going_on])

    def _write_feed(self, name: str) -> None:
        entry = self._schedule.entries[name]
        with suppress(OSError), written_whole(self._schedule.store.folder_of(entry.id) / _FEED) as half:
            half.write_text(entry.feed)

    def _start(self, launcher: Launcher, mode: Mode, name: str, plan: Plan, together: Sequence[str]) -> None:
        schedule, entry = self._schedule, self._schedule.entries[name]
        folder, record = schedule.store.folder_of(entry.id), self._records[entry.id]
        devices = tuple(schedule.machine.devices[gpu] for gpu in entry.gpus if schedule.machine.devices)
        run = replace(record.plan, devices=devices, watch_dataloader=record.plan.share is None)
        members = [job for job in plan.jobs if schedule.entries[job.name].feed == entry.feed]
        alike = [o for o in together if schedule.entries[o].feed == entry.feed and schedule.entries[o].plan.share]
        known = schedule.beliefs.source(entry) != "unknown"
        variables = {
            **schedule.machine.variables(entry.gpus),
            "PENSTOCK_FEED_FILE": str(folder / _FEED),
            **({"PENSTOCK_FEED_WORKERS": str(feed_workers(members, plan.model))} if known else {}),
            **({TOGETHER: str(len(alike))} if run.share else {}),
        }
        try:
            lock = keeper_lock(schedule.store, entry.id)
            try:
                launcher.start(
                    replace(record, plan=run),
                    mode,
                    listeners=entry.listeners,
                    variables=variables,
                    held=(lock,),
                )
            finally:
                os.close(lock)
        except (OSError, PenstockError) as error:  # a full disk: it waits on
            self._say_once(f"{name} could not be started, and waits: {error}")
            self._could_not_start = True
            return
        schedule.waiting.remove(name)
        schedule.begin(entry, record)
        self._started.add(entry.id)
        for other in schedule.neighbours(name):
            self._beside.setdefault(name, set()).add(other)
            self._beside.setdefault(other, set()).add(name)

    def _hear(self, launcher: Launcher, timeout_s: float | None) -> None:
        until_s = time.monotonic() + _TICK_S
        while (left_s := until_s - time.monotonic()) > 0:
            if not launcher.running:
                time.sleep(left_s)
                return
            for event in launcher.events(min(left_s, timeout_s or _TICK_S)):
                name = self._names[event.id]
                self._show(name, event)
                if isinstance(event, RunEnded):
                    self._take_end(name)
                    return

    def _find_ended(self, launcher: Launcher) -> None:
        """Take the ends of runs that an earlier process has started."""
        schedule = self._schedule
        for name, record in list(schedule.running.items()):
            if record.id in self._started:
                continue
            if record.status in ENDED:
                launcher.unwatch(record.id)
                self._show(name, RunEnded(record.id))
                self._take_end(name)
            elif record.status == "waiting" and not is_held(schedule.store, record.id):
                del schedule.running[name], schedule.watched[name]
                schedule.waiting.append(name)
                self._planned_s = -1.0

    def _take_end(self, name: str) -> None:
        schedule, entry = self._schedule, self._schedule.entries[name]
        watched = schedule.watched.pop(name)
        del schedule.running[name]
        record = schedule.store.run(entry.id)
        schedule.store.compact(record.id)
        if schedule.beliefs.source(entry) != "measured" and (seen := watched.seen(1.0)):
            schedule.beliefs.learn(entry, seen, schedule.data.get(name, ""), has_gpu=False)
        schedule.beliefs.ended(entry, watched.newest, finished=record.status == "finished")
        others = self._beside.pop(name, set())
        if record.status == "out_of_memory" and others and not entry.needs_gpu_alone:
            for other in others:
                schedule.profiles.put_apart(entry.plan, schedule.entries[other].plan)
            entry.needs_gpu_alone = True
            self._once_more(
                entry, f"{name} ran out of memory beside {', '.join(sorted(others))}: it runs once more, alone"
            )
        elif name in self._to_resume:
            self._to_resume.discard(name)
            entry.trained += watched.newest.samples if watched.newest else 0.0
            self._once_more(entry, f"{name} was ended, and goes on later")
        else:
            self._end_dependents()
        self._planned_s = -1.0

    def _once_more(self, entry: Entry, why: str) -> None:
        say(why)
        secret = self._records[entry.id]
        new = once_more(self._schedule.store, entry, secret)
        self._records[new.id] = replace(new, plan=secret.plan)
        self._names[new.id] = entry.name
        self._schedule.waiting.append(entry.name)

    def _end_dependents(self) -> None:
        """End the runs that wait for one that has not finished."""
        schedule, failed = self._schedule, dict[str, str]()
        for entry in schedule.ledger.entries:
            if (record := schedule.store.run(entry.id)).status in ENDED and record.status != "finished":
                failed[entry.name] = record.status
        for name in list(schedule.waiting):
            if broken := sorted(need for need in schedule.needs[name] if need in failed):
                why = f"never began: it comes after {broken[0]}, which {failed[broken[0]]}"
                schedule.store.ended(schedule.entries[name].id, "failed", None, why)
                schedule.waiting.remove(name)
                failed[name] = "failed"
                self._end_dependents()
                return

    def _learn(self) -> None:
        """Believe what was measured of runs that are not as believed, and end pairs that are slower together."""
        schedule = self._schedule
        for name in schedule.running:
            entry, seen = schedule.entries[name], schedule.watched[name].seen()
            if seen and (schedule.beliefs.source(entry) != "measured" or schedule.watched[name].is_off()):
                is_new = schedule.beliefs.source(entry) != "measured"
                is_alone = not schedule.neighbours(name)
                schedule.beliefs.learn(entry, seen, schedule.data.get(name, ""), has_gpu=is_alone)
                if is_new:
                    self._planned_s = -1.0
        self._part_the_slow()

    def _part_the_slow(self) -> None:
        """Never make a pair again that is slower together; end one of it that can go on later."""
        schedule, plan = self._schedule, self._plan
        assert plan
        training = [name for name in schedule.running if schedule.watched[name].seen(WINDOW_S)]
        jobs = dict(zip(plan.names, plan.jobs, strict=True))
        placed = [
            Placed.on(jobs[name], schedule.entries[name].gpus, plan.model) for name in training if name in jobs
        ]
        left = {name: job.samples for name, job in jobs.items()}
        for pair in slower_together(schedule.watched, placed, left, plan.model, plan.chosen.sharing):
            one, other = (schedule.entries[name] for name in pair)
            if not schedule.profiles.put_apart(one.plan, other.plan):
                continue
            say(f"{one.name} and {other.name} are slower together than one after the other: never again")
            self._planned_s = -1.0
            resumable = [
                entry for entry in (other, one) if entry.plan.preempt and entry.name not in self._to_resume
            ]
            if resumable:
                self._to_resume.add(resumable[0].name)
                keeper = ask_to_end(schedule.store, schedule.running[resumable[0].name])
                if keeper is not None:
                    os.close(keeper)

    def _keep(self) -> None:
        try:
            self._file.write(self._schedule.ledger)
        except OSError as error:
            self._say_once(f"the schedule cannot be written down: {error.strerror}; it goes on")

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            say(sentence)
