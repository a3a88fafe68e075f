"""What is known of a schedule's runs: declared in the file, measured before or now, or taken from a sibling."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

from msgspec.structs import replace

from penstock.runs.record import GroupPlan
from penstock.runs.spec.needs import Names
from penstock.schedule.jobs import SPARE, HostMachine, Job, alone_sample_s
from penstock.schedule.ledger import Entry
from penstock.schedule.profiles import Profile, Profiles, with_one_python
from penstock.schedule.usage import Usage, UsageSpan

Source = Literal["measured", "like a sibling", "unknown"]
_ASSUMED_EPOCHS = 10
_ASSUMED_S = 600.0
_GUESS = Profile(preparation_s=1e-3, own_s=1e-3, gpu_s=1e-3, start_s=5.0)
_ANY = "?"
"""Data key of runs not yet measured. They share a feed only if its name and data turn out equal."""
_GOES_ON = re.compile(r"[\d.]\0[\d.]|[^\W\d_]\0[^\W\d_]|\d[eE][+-]?\0\d|^[+-]\0\d")
"""Where a value is the end of a number, or of a word."""
_LENGTH = re.compile(r"(?i)^(?:(?:num|max|total|train)[_-]?)*(?:epochs?|steps|iters|iterations)$")
_LEAST_LEFT = 0.02
"""Part of all samples that a run has left at least: it goes on, whatever was believed of its length."""


class Estimates:
    """What plans believe of each run.

    A run of which nothing is known takes a whole GPU, and so runs alone there until it has been measured. What was
    measured of one run is believed of those that differ from it in parameters only, until they are measured.
    """

    def __init__(self, entries: Sequence[Entry], profiles: Profiles, machine: HostMachine) -> None:
        self.profiles = profiles  # what was measured before, and is kept of what is measured now
        self._machine = machine  # what they run on
        self._kinds = {entry.name: profiles.key(entry.plan) for entry in entries}
        self._known = {name: profiles.get(kind) for name, kind in self._kinds.items()}
        alike = dict[tuple[object, ...], list[Entry]]()
        self._siblings = {each.name: alike.setdefault(_without_parameters(each), []) for each in entries}
        for entry in entries:
            self._siblings[entry.name].append(entry)

    def source(self, entry: Entry) -> Source:
        """Return where a run's figures come from."""
        if self._known[entry.name]:
            return "measured"
        return "like a sibling" if self._profile(entry) else "unknown"

    def is_guess(self, entry: Entry) -> bool:
        """Return whether nothing is known of a run, or its length is assumed."""
        return self.source(entry) == "unknown" or self.samples(entry)[1]

    def reads_feed(self, entry: Entry) -> bool:
        """Return whether a run is known to read a feed."""
        known = self._profile(entry)
        return bool(known and known.data)

    def samples(self, entry: Entry) -> tuple[float, bool]:
        """Return how many samples a run trains on in all, and whether that is assumed."""
        own = self._known[entry.name]
        sibling = None if own else self._sibling(entry)
        known = self._known[sibling.name] if sibling else own
        per_epoch = known.samples_per_epoch if known else None
        if own and own.samples:
            return own.samples, False
        if entry.plan.epochs and per_epoch:
            return float(entry.plan.epochs * per_epoch), False
        if sibling and known and known.samples:
            times = _times_as_long(entry.plan.parameters, sibling.plan.parameters)
            return known.samples * times, times != 1
        if per_epoch:
            return float(_ASSUMED_EPOCHS * per_epoch), True
        costs = known or _GUESS
        one = Job(name="", samples=1.0, preparation_s=costs.preparation_s, own_s=costs.own_s, gpu_s=costs.gpu_s)
        return _ASSUMED_S / max(alone_sample_s(one, self._machine.model), 1e-9), True

    def kind(self, entry: Entry) -> str:
        """Return what a run's interference with others is kept by."""
        return self._kinds[entry.name]

    def data(self, entry: Entry) -> str:
        """Return what a run reads: runs with equal text can be fed by one feed. Empty: none is."""
        if entry.plan.feed != "auto":
            return "" if entry.plan.feed == "none" else entry.plan.feed
        known = self._profile(entry)
        return known.data if known else _ANY

    def job(self, entry: Entry, *, after: Iterable[str] = (), elapsed_s: float = 0.0) -> Job:
        """Return a run as plans see it, from its beginning.

        ``after`` names runs that have yet to end before it starts; the schedule first started ``elapsed_s`` ago.
        """
        plan, known = entry.plan, self._profile(entry)
        declared = plan.memory_bytes
        is_unknown = known is None or (known.memory_bytes is None and declared is None)
        is_alone = is_unknown or entry.needs_gpu_alone or entry.mode == "alone"
        memory = max(declared or 0, (known and known.memory_bytes) or 0)
        costs = known or _GUESS
        on_gpu = self._machine.has_gpus
        return Job(
            name=entry.name,
            samples=max(self.samples(entry)[0] - entry.trained, 1.0),
            preparation_s=costs.preparation_s,
            own_s=costs.own_s,
            gpu_s=costs.gpu_s if on_gpu else 0.0,
            start_s=costs.start_s,
            feed_start_s=costs.feed_start_s,
            sm_share=costs.sm_share,
            memory_bytes=int(memory),
            alone=is_alone,
            gpus=(1 if plan.gpus is None else plan.gpus) if on_gpu else 1,
            data=self.data(entry),
            kind=self.kind(entry),
            priority=plan.priority,
            deadline_s=None if plan.deadline_s is None else plan.deadline_s - elapsed_s,
            after=tuple(after),
            devices=tuple(i for i, name in enumerate(self._machine.names) if name in plan.devices),
        )

    def going_on(self, job: Job, look: Usage | None) -> Job:
        """Return what is left of a run that has begun."""
        if look is None or not look.samples:
            spent_s = look.own_cpu_s if look else 0.0
            return replace(job, start_s=max(0.0, job.start_s - spent_s))
        left = max(job.samples - look.samples, _LEAST_LEFT * job.samples)
        return replace(job, samples=left, start_s=0.0, memory_bytes=max(job.memory_bytes, look.memory_bytes or 0))

    def learn(self, entry: Entry, seen: UsageSpan, data: str, *, has_gpu: bool) -> None:
        """Believe what was measured of a run meanwhile.

        ``data`` names what it reads, as profiles do; ``has_gpu`` says that it had its GPUs for itself.
        """
        known, found, now = self._known[entry.name], seen.costs, seen.now
        old = known or self._profile(entry) or _GUESS
        if old is _GUESS and any(map(math.isnan, (found.preparation_s, found.own_s, found.gpu_s))):
            return  # a guess is not kept as measured
        own_s = _or(found.own_s, old.own_s)
        gpu_s = _or(found.gpu_s, old.gpu_s) if has_gpu or old is _GUESS else old.gpu_s
        feed = now.feed
        believed = self._known[entry.name] = Profile(
            preparation_s=_or(found.preparation_s, old.preparation_s),
            own_s=own_s,
            gpu_s=gpu_s,
            start_s=known.start_s if known else max(0.0, seen.first.own_cpu_s - seen.first.samples * own_s),
            feed_start_s=old.feed_start_s,
            sm_share=old.sm_share,
            memory_bytes=max(int((now.memory_bytes or 0) / SPARE), (known and known.memory_bytes) or 0) or None,
            data=data or (known.data if known else ""),
            samples_per_epoch=(feed and feed.samples_per_epoch) or old.samples_per_epoch,
            samples=known.samples if known else None,
        )
        with suppress(OSError):  # a full disk: it is known here
            self.profiles.put(self.kind(entry), believed)

    def finished(self, entry: Entry, look: Usage, samples: float) -> None:
        """Keep what was seen of a run that has finished, for the next schedule.

        Since it was started, it has trained on ``samples``.
        """
        known = self._known[entry.name]
        if known is None or not look.samples:
            return
        known = self._known[entry.name] = replace(
            known,
            samples=entry.trained + samples,
            memory_bytes=max(known.memory_bytes or 0, int((look.memory_bytes or 0) / SPARE)) or None,
        )
        with suppress(OSError):
            self.profiles.put(self.kind(entry), known)

    def _profile(self, entry: Entry) -> Profile | None:
        if known := self._known[entry.name]:
            return known
        sibling = self._sibling(entry)
        return self._known[sibling.name] if sibling else None

    def _sibling(self, entry: Entry) -> Entry | None:
        siblings = [other for other in self._siblings[entry.name] if self._known[other.name]]
        mine = entry.plan.parameters.items()
        return max(siblings, key=lambda other: len(mine & other.plan.parameters.items()), default=None)


def check_fits(entries: Iterable[Entry], estimates: Estimates, machine: HostMachine) -> str:
    """Return which run can never start here, and why; empty if all can."""
    for entry in entries:
        job = estimates.job(entry)
        most = max(machine.model.memories)
        if job.memory_bytes > most and job.gpus:
            source = "declared" if entry.plan.memory_bytes is not None else "measured"
            what = "no GPU here has" if machine.has_gpus else "this machine has not"
            return (
                f"{entry.name} needs {job.memory_bytes / 2**30:.1f} GiB ({source}), which {what}: "
                f"{most / 2**30:.1f} GiB may be filled, 5% stay free"
            )
        there = len(job.devices) or machine.model.gpus
        if job.gpus > there:
            return f"{entry.name} needs {job.gpus} GPUs at once, and there are {there} that it may use"
    return ""


def _or(measured: float, before: float) -> float:
    """Return what was measured, or what was believed before if it was not."""
    return before if math.isnan(measured) else measured


def _without_parameters(entry: Entry) -> tuple[object, ...]:
    """Return what siblings have in common: their group, and their command but for the values of parameters."""
    values = sorted((value for value in entry.plan.parameters.values() if value), key=len, reverse=True)

    def blank(word: str) -> str:
        for value in values:
            rest = word.removesuffix(value)
            if rest != word and not _GOES_ON.search(f"{rest[-3:]}\0{value[0]}"):
                return rest
        return word

    return entry.group, entry.plan.directory, tuple(map(blank, with_one_python(entry.plan.command)))


def _times_as_long(mine: Mapping[str, str], others: Mapping[str, str]) -> float:
    """Return how many times as long a run is as its sibling, by parameters that are called after a length."""
    times = 1.0
    for name, value in mine.items():
        with suppress(KeyError, ValueError):
            if _LENGTH.search(name) and float(value) > 0 and float(others[name]) > 0:
                times *= float(value) / float(others[name])
    return times if math.isfinite(times) and times > 0 else 1.0


def dependencies(
    entries: Sequence[Entry], groups: Sequence[GroupPlan], *, in_turn: bool
) -> dict[str, frozenset[str]]:
    """Return, by name of a run, the names of those that must end before it starts.

    ``entries`` begin with the runs of the groups, in order; ``in_turn`` groups start each after the one before.
    """
    names = Names(groups)
    needs = {entry.name: frozenset[str]() for entry in entries}
    for place, ((group, _), before) in enumerate(zip(names.runs, names.before(), strict=True)):
        earlier = [other for other, (at, _) in enumerate(names.runs) if in_turn and at < group]
        needs[entries[place].name] = frozenset(entries[other].name for other in (*before, *earlier))
    return needs
