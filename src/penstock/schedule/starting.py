"""Starts a schedule's runs, and tells each which feed to read: by its environment, and a file that it names."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from penstock.inject import TOGETHER
from penstock.linux.files import written_whole
from penstock.runs.launch.launcher import Launcher
from penstock.runs.modes.mode import Mode
from penstock.runs.record import RunRecord
from penstock.schedule.jobs import GpuMachine, Job
from penstock.schedule.partition import rates_together
from penstock.schedule.present import LiveSchedule, PresentPlan, keeper_lock


def suffixes(parts: Sequence[Sequence[str]], now: Mapping[str, str], new: Callable[[], str]) -> dict[str, str]:
    """Return a suffix for each run: of a feed that most members of its part read now, if there is one.

    Each of ``parts`` names the runs of a feed. ``now`` is the suffix of the feed that a run reads now, empty of
    one that has yet to start; ``new`` returns one that no feed has had.
    """
    found, taken = dict[str, str](), set[str]()
    for part in sorted(parts, key=lambda part: -len(part)):
        used = Counter(now[name] for name in part if now[name] and now[name] not in taken)
        suffix = used.most_common(1)[0][0] if used else new()
        taken.add(suffix)
        found |= dict.fromkeys(part, suffix)
    return found


def feed_workers(members: Sequence[Job], machine: GpuMachine) -> int:
    """Return how many workers keep up with the members of a feed, of those that have a core."""
    prepared_s = max(job.preparation_s for job in members)
    cpu_s = prepared_s + sum(job.own_s for job in members)
    sample_s = max(*(max(job.gpu_s, job.own_s) for job in members), cpu_s / machine.cores)
    return max(1, min(math.floor(machine.cores), math.ceil(prepared_s / sample_s)))


_FEED = "feed"


class Starter:
    """Starts runs where a plan has them."""

    def __init__(self, schedule: LiveSchedule, launcher: Launcher, mode: Mode) -> None:
        self._schedule = schedule
        self._launcher = launcher  # starts them
        self._mode = mode  # the open mode of all
        self.rates: dict[str, float] = {}
        """Samples a second that the model expects of each run that runs from now on."""

    def divide(self, plan: PresentPlan, starting: Sequence[str]) -> bool:
        """Divide the runs that run from now on into feeds; return whether one that runs is to change its feed."""
        schedule, entries = self._schedule, self._schedule.entries
        names = [*schedule.running, *starting]
        placed, left = plan.placed(names, entries), plan.left()
        rates, _, parts = rates_together(
            placed, [left[name] for name in names], 0, plan.model, plan.chosen.sharing
        )
        now = {name: entries[name].feed for name in names}
        new = suffixes([[names[i] for i in part] for part in parts], now, schedule.ledger.new_feed)
        for name, suffix in new.items():
            if suffix != entries[name].feed or name in starting:
                entries[name].feed = suffix
                with suppress(OSError), written_whole(self._file(name)) as half:
                    half.write_text(f"{suffix}-{{data}}")
        self.rates = dict(zip(names, rates, strict=True))
        return any(new[name] != now[name] for name in schedule.running)

    def start(self, name: str, record: RunRecord, plan: PresentPlan, together: Sequence[str]) -> None:
        """Start a run, whose record has its secrets; ``together`` names all that start now."""
        schedule, entries = self._schedule, self._schedule.entries
        entry, machine = entries[name], schedule.machine
        devices = tuple(machine.devices[gpu] for gpu in entry.gpus if machine.devices)
        unwatched = entry.plan.share is not None or schedule.estimates.reads_feed(entry)
        run = replace(record.plan, devices=devices, watch_dataloader=record.plan.watch_dataloader or not unwatched)
        lock = keeper_lock(schedule.store, entry.id)
        try:
            self._launcher.start(
                replace(record, plan=run, index=entry.index),
                self._mode if devices else Mode(),
                listeners=entry.listeners,
                variables={**machine.variables(entry.gpus), **self._variables(name, plan, together)},
                held=(lock,),
            )
        finally:
            os.close(lock)

    def _variables(self, name: str, plan: PresentPlan, together: Sequence[str]) -> Mapping[str, str]:
        """Return the environment variables that tell a run its feed."""
        schedule, entries = self._schedule, self._schedule.entries
        alike = {other for other, entry in entries.items() if entry.feed == entries[name].feed}
        found = {"PENSTOCK_FEED_FILE": str(self._file(name))}
        if schedule.estimates.source(entries[name]) != "unknown":
            members = [job for job in plan.jobs if job.name in alike]
            found["PENSTOCK_FEED_WORKERS"] = str(feed_workers(members, plan.model))
        if entries[name].plan.share:
            found[TOGETHER] = str(sum(other in alike and self._shares(other, name) for other in together))
        return found

    def _shares(self, other: str, name: str) -> bool:
        """Return True if both were measured on the same data. Others could wait for each other for ever."""
        estimates, entries = self._schedule.estimates, self._schedule.entries
        both = entries[other], entries[name]
        is_known = all(each.plan.share and estimates.source(each) == "measured" for each in both)
        return other == name or (is_known and len({estimates.data(each) for each in both}) == 1)

    def _file(self, name: str) -> Path:
        return self._schedule.store.folder_of(self._schedule.entries[name].id) / _FEED
