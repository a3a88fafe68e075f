"""Runs a schedule: starts what the plan starts now, watches it, and plans again at each event."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from msgspec.structs import replace

from penstock.basics.terminal import say
from penstock.errors import PenstockError
from penstock.runs.figures import LOOPS, training
from penstock.runs.launch.launcher import Launcher, RunEnded, RunEvent
from penstock.runs.modes.mode import Mode, opened
from penstock.runs.record import ENDED, RunRecord
from penstock.runs.spec.needs import after_unfinished
from penstock.runs.stop import ask_to_end
from penstock.schedule.ledger import Entry, LedgerFile, once_more
from penstock.schedule.present import LiveSchedule, PresentPlan, is_held
from penstock.schedule.starting import Starter
from penstock.schedule.usage import WINDOW_S, slower_together

_TICK_S = 1.0
_RESTED_S, _MOST_RESTED_S = 10.0, 160.0
"""Seconds between two plans where no run has come or gone; they double each time."""
_FIRST_CPU_S, _AGAIN_CPU_S = 2.0, 0.5
"""What a plan may take."""


class Execution:
    """Brings a schedule to its end."""

    def __init__(
        self,
        schedule: LiveSchedule,
        records: Mapping[str, RunRecord],  # their records by id, as they are to be started, secrets included
        file: LedgerFile,
        *,
        show: Callable[[str, RunEvent], None],
        tick: Callable[[PresentPlan], float | None],
    ) -> None:
        self._schedule = schedule
        self._records = dict(records)
        self._file = file  # where the schedule is remembered
        self._show = show  # called with what runs print, and when they end
        self._tick = tick  # draws what is due, and returns the seconds until something will be; None for never
        self._names = {entry.id: entry.name for entry in schedule.ledger.entries}
        self._started: set[str] = set()  # by this process
        self._to_settle: list[str] = []
        self._said: set[str] = set()
        self._could_not_start = False
        self._plan: PresentPlan | None = None
        self._planned_s = 0.0
        self._rest_s = 0.0  # a plan is due at once

    def run(self) -> None:
        """Run all to their end. Those that run go on if this process ends."""
        schedule = self._schedule
        with ExitStack() as stack:
            launcher = stack.enter_context(Launcher(schedule.store, orphans="keep"))
            mode = self._mode(stack)
            for name in schedule.running:
                launcher.watch(schedule.entries[name].id, schedule.entries[name].listeners)
            self._to_settle = [*schedule.entries]  # what ended while no scheduler lived
            self._settle()
            starter = Starter(schedule, launcher, mode)
            while schedule.unended() or self._to_settle:
                if self._is_due():
                    self._plan_and_start(starter)
                self._hear(launcher)
                schedule.look()
                self._find_ended(launcher)
                self._settle()
                if self._plan:
                    self._learn(self._plan)
            schedule.ledger.is_over = True
            self._keep()

    def _mode(self, stack: ExitStack) -> Mode:
        """Open the mode of all runs: under MPS, a daemon for each GPU."""
        schedule = self._schedule
        if schedule.machine.model.mode == "plain" or not schedule.machine.devices:
            return Mode()
        any_run = next(iter(self._records.values()))
        each = [replace(any_run, plan=replace(any_run.plan, devices=(uuid,))) for uuid in schedule.machine.devices]
        return stack.enter_context(opened("mps", each, outlived=True))

    def _is_due(self) -> bool:
        schedule = self._schedule
        if not schedule.unended() or time.monotonic() - self._planned_s < self._rest_s:
            return False
        is_off = any(schedule.watched[name].is_off() for name in schedule.running)
        may_start = self._could_not_start or not schedule.running or bool(schedule.machine.devices)
        return self._rest_s == 0 or is_off or (may_start and bool(schedule.waiting))

    def _plan_and_start(self, starter: Starter) -> None:
        schedule, ledger = self._schedule, self._schedule.ledger
        is_first, is_event, self._could_not_start = self._plan is None, self._rest_s == 0, False
        self._plan = plan = schedule.plan(_FIRST_CPU_S if is_first else _AGAIN_CPU_S)
        self._planned_s = time.monotonic()
        self._rest_s = _RESTED_S if is_event else min(2 * self._rest_s, _MOST_RESTED_S)
        ledger.coming = plan.expected()
        ledger.expected = ledger.expected or ledger.coming
        starts = {
            plan.names[i]: run.gpus
            for i, run in plan.chosen.outcome.runs.items()
            if plan.names[i] in schedule.waiting and run.start_s <= 0
        }
        for name, gpus in starts.items():
            schedule.entries[name].gpus = gpus
        if starter.divide(plan, [*starts]) or starts or is_event:
            for watched in schedule.watched.values():
                watched.begin_anew()
        self._keep()
        for name in starts:
            self._start(starter, name, plan, [*starts])
        for name, watched in schedule.watched.items():
            watched.expected = starter.rates.get(name)
        if not starts and not schedule.running:
            waiting = schedule.waiting[0]
            self._say_once(f"nothing can start: {waiting} finds no room; others use the GPUs, or the memory")

    def _start(self, starter: Starter, name: str, plan: PresentPlan, together: Sequence[str]) -> None:
        schedule, entry = self._schedule, self._schedule.entries[name]
        try:
            starter.start(name, self._records[entry.id], plan, together)
        except (OSError, PenstockError) as error:  # a full disk: it waits on
            self._say_once(f"{name} could not be started, and waits: {error}")
            self._could_not_start = True
            return
        schedule.waiting.remove(name)
        schedule.begin(entry, self._records[entry.id])
        self._started.add(entry.id)

    def _hear(self, launcher: Launcher) -> None:
        until_s = time.monotonic() + _TICK_S
        while (left_s := until_s - time.monotonic()) > 0:
            drawn_s = self._tick(self._plan) if self._plan else None
            if not launcher.running:
                time.sleep(left_s)
            for event in launcher.events(left_s if drawn_s is None else min(left_s, drawn_s)):
                name = self._names[event.id]
                self._show(name, event)
                if isinstance(event, RunEnded):
                    self._take_end(name)
                    return

    def _find_ended(self, launcher: Launcher) -> None:
        """Take the ends of runs that an earlier process has started, and of those that somebody has stopped."""
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
                self._rest_s = 0.0
        stopped = [name for name in schedule.waiting if schedule.record(schedule.entries[name]).status in ENDED]
        schedule.waiting = [name for name in schedule.waiting if name not in stopped]
        self._to_settle += stopped

    def _take_end(self, name: str) -> None:
        """Count a run no more among those that run."""
        schedule, entry = self._schedule, self._schedule.entries[name]
        watched = schedule.watched.pop(name)
        del schedule.running[name]
        if schedule.estimates.source(entry) != "measured" and (seen := watched.in_all()):
            schedule.estimates.learn(entry, seen, schedule.data.get(name, ""), has_gpu=False)
        if watched.newest and schedule.record(entry).status == "finished":
            series = schedule.store.series(entry.id, LOOPS.__contains__)
            counted = series.get(f"{training(series)}samples")
            samples = float(counted.values[-1]) if counted else watched.newest.samples
            schedule.estimates.finished(entry, watched.newest, samples)
        elif watched.newest and entry.resumes:
            entry.trained += watched.newest.samples
        self._to_settle.append(name)
        self._rest_s = 0.0

    def _settle(self) -> None:
        """Do what follows from ends: some runs are to run again, and some that came after others never begin."""
        settling, self._to_settle = self._to_settle, []
        for name in settling:
            entry = self._schedule.entries[name]
            try:
                if (record := self._schedule.record(entry)).status in ENDED and not entry.status:
                    self._end(entry, record)
                    self._schedule.store.compact(record.id)
            except (OSError, PenstockError) as error:  # a full disk: at the next look again
                self._say_once(f"what {name} has come to could not be recorded: {error}")
                self._to_settle.append(name)
        if settling:
            self._end_dependents()
            self._keep()

    def _end(self, entry: Entry, record: RunRecord) -> None:
        schedule = self._schedule
        others = schedule.beside_at_end(entry, record) if record.status == "out_of_memory" else []
        if others and not entry.needs_gpu_alone:
            for other in others:
                schedule.profiles.mark_incompatible(schedule.estimates.kind(entry), schedule.estimates.kind(other))
            names = ", ".join(sorted(other.name for other in others))
            self._once_more(entry, f"{entry.name} ran out of memory beside {names}: it runs once more, alone")
            entry.needs_gpu_alone = True
        elif entry.resumes and record.status != "finished":
            self._once_more(entry, f"{entry.name} was ended, and goes on later")
            entry.resumes = False
        else:
            entry.status = record.status

    def _once_more(self, entry: Entry, why: str) -> None:
        plan = self._records[entry.id].plan if entry.id in self._records else entry.plan
        new = once_more(self._schedule.store, entry, plan)
        say(why)
        self._records[new.id] = replace(new, plan=plan)
        self._names[new.id] = entry.name
        self._schedule.waiting.append(entry.name)

    def _end_dependents(self) -> None:
        """End the runs that wait for one that has not finished."""
        schedule = self._schedule
        entries = schedule.ledger.entries
        failed = {each.name: each.status for each in entries if each.status not in ("", "finished")}
        for name in schedule.waiting:
            if broken := sorted(need for need in schedule.needs[name] if need in failed):
                why = after_unfinished(broken[0], failed[broken[0]])
                schedule.entries[name].status = failed[name] = "failed"
                schedule.waiting.remove(name)
                say(f"{name} {why}")
                try:
                    schedule.store.ended(schedule.entries[name].id, "failed", None, why)
                except PenstockError as error:  # a full disk: it is lost there
                    self._say_once(f"what {name} has come to could not be recorded: {error}")
                self._end_dependents()
                return

    def _learn(self, plan: PresentPlan) -> None:
        """Believe what was measured of runs that are not as believed."""
        schedule, estimates = self._schedule, self._schedule.estimates
        is_rested = time.monotonic() - self._planned_s >= self._rest_s
        for name in schedule.running:
            entry, seen = schedule.entries[name], schedule.watched[name].seen()
            is_new = estimates.source(entry) != "measured"
            if seen and (is_new or (is_rested and schedule.watched[name].is_off())):
                is_alone = not schedule.neighbours(name)
                estimates.learn(entry, seen, schedule.data.get(name, ""), has_gpu=is_alone)
                self._rest_s = 0.0 if is_new else self._rest_s
        self._part_the_slow(plan)

    def _part_the_slow(self, plan: PresentPlan) -> None:
        """Never make a pair again that is slower together; end one of it that can go on later."""
        schedule, entries = self._schedule, self._schedule.entries
        training = [name for name in schedule.running if schedule.watched[name].seen(WINDOW_S)]
        placed = plan.placed([name for name in training if name in plan.names], entries)
        for pair in slower_together(schedule.watched, placed, plan.left(), plan.model, plan.chosen.sharing):
            one, other = (entries[name] for name in pair)
            if not schedule.profiles.mark_incompatible(
                schedule.estimates.kind(one), schedule.estimates.kind(other)
            ):
                continue
            say(f"{one.name} and {other.name} are slower together than one after the other: never again")
            resumable = next((each for each in (other, one) if each.plan.preempt), None)
            if resumable and not (one.resumes or other.resumes):
                resumable.resumes = True
                self._keep()
                keeper = ask_to_end(schedule.store, schedule.running[resumable.name])
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
