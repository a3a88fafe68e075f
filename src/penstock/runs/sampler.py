"""``python -m penstock.runs.sampler [STORE]``: samples listeners while runs go on, into the runs' series.

It reads lines of JSON from its standard input: ``{"type": "begin", "id": ID}`` (with ``"listeners": [NAME, …]``
for some of them only) and ``{"type": "end", "id": ID}``. It ends when that input
has ended and all runs have. SIGKILL costs the tick that is being written; another sampler goes on from there.
"""

from __future__ import annotations

import os
import resource
import select
import sys
import time
from pathlib import Path

import msgspec

from penstock.basics.terminal import say
from penstock.errors import PenstockError
from penstock.linux.process import ignore_sent
from penstock.runs.listeners.contract import Listener, Sample, Values, WatchedRun, listener_names, make_listener
from penstock.runs.listeners.feed import FeedParts
from penstock.runs.listeners.processes import Processes
from penstock.runs.record import ENDED
from penstock.runs.store import SeriesWriter, Store, points_file

WRITER = "sampler"
INTERVAL_S = 1.0


class Begin(msgspec.Struct, tag="begin"):
    """A run begins, or has begun; it is sampled as soon as the store knows its processes."""

    id: str
    listeners: tuple[str, ...] | None = None  # what is sampled of it; None for all that can run here


class End(msgspec.Struct, tag="end"):
    """A run has ended."""

    id: str


_messages = msgspec.json.Decoder(Begin | End)


class Schedule:
    """Times of ticks, in seconds of a clock that the caller reads."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self.missed = 0  # ticks that were left out because their time, and the next one's, had come

    def restart(self, now_s: float) -> None:
        """Let a tick be due now, and the others from here on."""
        self._next_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Return the time until the next tick."""
        return max(0.0, self._next_s - now_s)

    def is_due(self, now_s: float) -> bool:
        """Return whether a tick is due; if so, count it as done."""
        if now_s < self._next_s:
            return False
        late = int((now_s - self._next_s) / INTERVAL_S)
        self.missed += late
        self._next_s += (late + 1) * INTERVAL_S
        return True


class _Run:
    """A run's file of series."""

    def __init__(self, store: Store, watched: WatchedRun, listeners: list[Listener]) -> None:
        self.watched = watched
        self.listeners = listeners
        self._was_seen = False
        path = points_file(store.folder_of(watched.id), WRITER)
        # What a sampler that was killed has counted goes on from there.
        series = store.series(watched.id) if path.exists() else {}
        self._before = {name: each.last or 0.0 for name, each in series.items()}
        self._offsets: dict[str, float] = {}
        self.writer = SeriesWriter(path)

    def goes_on(self, pids: tuple[int, ...]) -> bool:
        """Return whether its command is among its processes, or never was; later points are rates of nothing."""
        was_seen, self._was_seen = self._was_seen, self.watched.pid in pids
        return self._was_seen or not was_seen

    def add(self, time_s: float, host: Values, own: Values) -> None:
        for values in (host, own):
            for name, value in values.counters.items():
                if name not in self._offsets:
                    offset = self._before.get(name, 0.0) - value
                    # The host's begin at any moment, the run's with the run.
                    self._offsets[name] = offset if values is host else max(0.0, offset)
                self.writer.add(name, value + self._offsets[name], time_s)
            for name, value in values.gauges.items():
                self.writer.add(name, value, time_s)


class Sampler:
    """Samples runs. What fails is reported once on standard error, and the rest goes on."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._processes, self._feeds = Processes(), FeedParts()
        self._listeners: dict[str, Listener | None] = {}
        self._waiting: dict[str, Begin] = {}
        self._runs: dict[str, _Run] = {}
        self._why: dict[str, str] = {}
        self._reported: set[str] = set()

    @property
    def has_runs(self) -> bool:
        return bool(self._runs or self._waiting)

    def begin(self, message: Begin) -> None:
        """Sample a run, as soon as the store knows its processes."""
        if message.id not in self._runs:
            self._waiting[message.id] = message

    def end(self, id: str) -> None:
        """Sample a run no more; one that is unknown, or has ended, changes nothing."""
        self._waiting.pop(id, None)
        if run := self._runs.pop(id, None):
            try:
                run.writer.close()
            except PenstockError as error:
                self._report(str(error), "flush")

    def tick(self, time_s: float, missed: int = 0) -> None:
        """Ask the listeners and write their values; a run whose command or keeper has ended is dropped.

        ``time_s`` counts from 1970; ``missed`` ticks were missed so far.
        """
        self._begin_waiting()
        tick = self._processes.look(time_s, [run.watched for run in self._runs.values()])
        try:
            tick = tick._replace(feeds=self._feeds.look(tick))
        except Exception as error:  # as where the folder of the sockets is gone
            self._report(f"feeds are left out: {type(error).__name__}: {error}", "feeds")
        for id, run in list(self._runs.items()):
            if id not in tick.trees or not run.goes_on(tick.trees[id].pids):
                self.end(id)
        wanted = {each.name: each for run in self._runs.values() for each in run.listeners}
        samples = {"sampler": Sample(Values({"sampler.missed": missed}))}
        for name, listener in wanted.items():
            try:
                samples[name] = listener.sample(tick)
                for note in samples[name].notes:
                    self._report(f"listener {name}: {note}", note)
            except Exception as error:  # a listener of others' may raise anything
                self._report(f"listener {name} failed, and is asked again: {type(error).__name__}: {error}", name)
        for run in self._runs.values():
            for name in ("sampler", *(each.name for each in run.listeners)):
                if name in samples:
                    self._write(run, name, time_s, samples[name])
            try:
                run.writer.flush()
            except PenstockError as error:
                self._report(str(error), "flush")

    def close(self) -> None:
        """Close the runs' files and the listeners."""
        for id in list(self._runs):
            self.end(id)
        self._processes.close()
        for listener in self._listeners.values():
            if listener:
                listener.close()

    def _begin_waiting(self) -> None:
        for id, message in list(self._waiting.items()):
            try:
                record = self._store.run(id)
                if record.keeper and record.pid and record.status not in ENDED:
                    watched = WatchedRun(record.id, record.index, record.keeper, record.pid)
                    self._runs[id] = _Run(self._store, watched, self._wanted(message.listeners))
            except PenstockError as error:
                self._report(f"run {id} is not sampled: {error}", id)
                del self._waiting[id]
                continue
            if id in self._runs or record.status in ENDED:
                del self._waiting[id]

    def _wanted(self, names: tuple[str, ...] | None) -> list[Listener]:
        """Return the listeners of these names, or all that can run here; report why a named one cannot."""
        all_or_named = listener_names() if names is None else names
        found = [self._listener(name) for name in all_or_named]
        if names is not None:
            for why in dict.fromkeys(self._why[name] for name in names if name in self._why):
                lacking = [name for name in names if self._why.get(name) == why]
                self._report(f"listener {', '.join(lacking)} is left out: {why}", why)
        return [listener for listener in found if listener]

    def _listener(self, name: str) -> Listener | None:
        """Make a listener when it is first wanted; None if it cannot run."""
        if name not in self._listeners:
            self._listeners[name] = None
            try:
                listener = make_listener(name)
                if why := listener.unavailable():
                    self._why[name] = why
                else:
                    self._listeners[name] = listener
            except Exception as error:
                self._report(f"listener {name} is left out: {type(error).__name__}: {error}", name)
        return self._listeners[name]

    def _write(self, run: _Run, name: str, time_s: float, sample: Sample) -> None:
        try:
            run.add(time_s, sample.host, sample.runs.get(run.watched.id, Values()))
        except Exception as error:  # a full disk, or values of others' that are no numbers
            self._report(f"values of listener {name} are lost: {type(error).__name__}: {error}", f"{name} values")

    def _report(self, text: str, once: str) -> None:
        if once not in self._reported:
            self._reported.add(once)
            say(text)


def main(folder: Path | None) -> None:
    """Sample until the standard input has ended and all runs have."""
    ignore_sent()  # they are for the runs; what these still do is sampled
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # three files for each process of a run
    with Store.open(folder) as store:
        sampler = Sampler(store)
        schedule, is_open, partial = Schedule(), True, b""
        while is_open or sampler.has_runs:
            wait_s = schedule.wait_s(time.monotonic()) if sampler.has_runs else None
            if select.select([0] if is_open else [], [], [], wait_s)[0]:
                text = os.read(0, 1 << 16)
                is_open = bool(text)
                *lines, partial = (partial + text).split(b"\n")
                for line in lines:
                    message: Begin | End = _messages.decode(line)
                    if isinstance(message, End):
                        sampler.end(message.id)
                        continue
                    if not sampler.has_runs:
                        schedule.restart(time.monotonic())
                    sampler.begin(message)
            elif schedule.is_due(time.monotonic()):
                sampler.tick(time.time(), schedule.missed)
        sampler.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
