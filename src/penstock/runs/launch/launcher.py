"""Starts groups of runs one after the other, waits for them, and passes signals on to them."""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType

from penstock.basics.terminal import say
from penstock.errors import PenstockError
from penstock.inject import TOGETHER
from penstock.runs.launch.kept_run import KeptRun
from penstock.runs.launch.sampling import Sampling
from penstock.runs.launch.shown import AsItIs, Prefixed
from penstock.runs.launch.terminal import Terminal, stdin_is_ours, terminals
from penstock.runs.modes.mode import Mode, TimeSlices, opened
from penstock.runs.record import RunRecord
from penstock.runs.store import Store

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NO_TERMINAL = (False, False, False)
_ONE_SIGNAL_S = 1.0
"""Signals within so long are one: ``timeout`` sends its own to the process, and again to its group."""


class Launcher:
    """What ``penstock run`` does once its runs are in the store.

    Args:
        store: Where the runs wait.
        groups: Runs of each group, in order.
        listeners: What is sampled of each group's runs, as ``GroupPlan`` has it.
        tell: Told a run's group, by its place in ``groups``, and the run, when it has begun and when it has ended.
        orphans: What becomes of a run if this process disappears: "end" or "keep".
        below: Returns the lines to be shown below what several runs print; only for a terminal.
    """

    def __init__(
        self,
        store: Store,
        groups: Sequence[Sequence[RunRecord]],
        *,
        listeners: Sequence[tuple[str, ...] | None],
        tell: Callable[[int, RunRecord], None] | None = None,
        orphans: str = "end",
        below: Callable[[], list[str]] | None = None,
    ) -> None:
        self._store = store
        self._groups = groups
        self._listeners = listeners
        self._tell = tell
        self._sampling = Sampling(store)
        self._group_of = {record.id: place for place, group in enumerate(groups) for record in group}
        self._orphans = orphans
        self._records = [record for group in groups for record in group]
        self._places = {record.id: place for place, record in enumerate(self._records)}
        self._one = len(self._records) == 1 and orphans == "end"
        self._running: list[KeptRun] = []
        self._ended_by = ""
        self._ended_at_s = 0.0
        self._shown = AsItIs() if self._one else Prefixed([record.name for record in self._records], below)
        self._shows = True
        self._mode: Mode = TimeSlices()

    def run(self) -> list[RunRecord]:
        """Run all to their end; return what has become of them."""
        with self._forwarding():
            for group in self._groups:
                if waiting := [record for record in group if self._waits(record)]:
                    self._run_group(waiting)
            self._shown.end()
            self._sampling.close()
            for record in self._records:
                self._store.compact(record.id)
        return [self._store.run(record.id) for record in self._records]

    def _run_group(self, records: Sequence[RunRecord]) -> None:
        with ExitStack() as until_all_ended:
            try:
                self._mode = until_all_ended.enter_context(opened(records))
            except PenstockError as error:
                say(str(error))
                for record in records:
                    self._store.ended(record.id, "failed", None, f"never began: {error}")
                    self._note(record)
                return
            for together in [[record] for record in records] if records[0].mode == "alone" else [records]:
                self._run_together(together)

    def _waits(self, record: RunRecord) -> bool:
        """Return whether a run is still to be started."""
        if self._ended_by:
            self._store.ended(record.id, "killed", None, f"never began: {self._ended_by}")
        return self._store.run(record.id).status == "waiting"

    def _run_together(self, records: Sequence[RunRecord]) -> None:
        terminal = terminals() if self._one else _NO_TERMINAL
        alone = self._one and stdin_is_ours()
        sharing = {TOGETHER: str(sum(record.plan.share is not None for record in records))}
        for record in records:
            if self._waits(record):
                blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)  # no run is forgotten by a signal
                run = KeptRun(
                    self._store,
                    record,
                    orphans=self._orphans,
                    terminal=terminal,
                    alone=alone,
                    variables={**self._mode.variables(record), **(sharing if record.plan.share else {})},
                    lease=self._mode.lease,
                )
                self._running.append(run)
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for run in self._running:
            self._note(run.record)
            self._sampling.begin(run.record.id, self._listeners[self._group_of[run.record.id]])
        passed = Terminal(self._running[0], terminal) if any(terminal) and self._running else None
        if passed:
            self._hear(self._running[0])  # it knows now what the terminal is to be like again
            passed.open()
        describing = threading.Thread(target=self._describe, args=(records,), name="penstock-environment")
        describing.start()
        try:
            self._wait(passed if terminal[0] else None)
        finally:
            if passed:
                passed.close()
            describing.join()

    def _wait(self, typed: Terminal | None) -> None:
        with selectors.DefaultSelector() as selector:
            for run in self._running:
                selector.register(run.link, selectors.EVENT_READ, run)
            if typed:
                selector.register(0, selectors.EVENT_READ, typed)
            self._register_sampling(selector)
            while self._running:
                for key, _ in selector.select(self._shown.refresh()):
                    if isinstance(key.data, Sampling):
                        selector.unregister(key.fd)
                        key.data.restart()
                        self._register_sampling(selector)
                    elif isinstance(key.data, Terminal):
                        if not key.data.read():
                            selector.unregister(0)
                    elif not self._hear(key.data):
                        selector.unregister(key.data.link)
                        self._running.remove(key.data)
                        self._shown.close(self._places[key.data.record.id])
                        key.data.close()
                        self._sampling.end(key.data.record.id)
                        self._note(key.data.record)

    def _register_sampling(self, selector: selectors.BaseSelector) -> None:
        if self._sampling.ended is not None:
            selector.register(self._sampling.ended, selectors.EVENT_READ, self._sampling)

    def _note(self, record: RunRecord) -> None:
        """Tell who wants to know what has become of a run."""
        if self._tell:
            try:
                self._tell(self._group_of[record.id], self._store.run(record.id))
            except PenstockError as error:
                say(str(error))

    def _hear(self, run: KeptRun) -> bool:
        """Do what a keeper says; return False once it says no more."""
        said = run.receive()
        if isinstance(said, tuple):
            self._show(run, *said)
        elif said and "keeper" in said:
            run.keeper = said["keeper"]
        elif said and "began" in said:
            self._mode.began(run.record, said["began"], partial(self._remark, run))
        elif said and "said" in said:
            self._show(run, 2, f"penstock: run {run.record.id}: {said['said']}\n".encode())
        return said is not None

    def _remark(self, run: KeptRun, text: str) -> None:
        """Tell what is wrong with a run, and have it kept in the run's reason."""
        say(f"run {run.record.id}: {text}")
        run.send(note=text)

    def _describe(self, records: Sequence[RunRecord]) -> None:
        """Keep what the runs run in, without letting them wait for it."""
        from penstock.runs.launch.environment import describe_all

        describe_all(self._store, records, self._mode.variables)

    def _show(self, run: KeptRun, descriptor: int, data: bytes) -> None:
        if self._shows:
            try:
                self._shown.add(self._places[run.record.id], descriptor, data)
            except BrokenPipeError:  # as for a program in a pipeline: it is told when it next prints
                self._shows = False
                self._forward(signal.SIGTERM, "nobody reads the output of penstock run any more")

    def _forward(self, number: int, why: str) -> None:
        if self._ended_by:
            if time.monotonic() - self._ended_at_s >= _ONE_SIGNAL_S:
                for run in list(self._running):
                    run.kill(f"killed by a second signal: {why}")
            return
        self._ended_by, self._ended_at_s = why, time.monotonic()
        for run in list(self._running):
            run.send(signal=number, why=why)

    @contextmanager
    def _forwarding(self) -> Generator[None]:
        def forward(number: int, _frame: FrameType | None) -> None:
            name = signal.Signals(number).name
            self._forward(number, "Ctrl-C" if number == signal.SIGINT else f"{name} to penstock run")

        before = {number: signal.getsignal(number) for number in _FORWARDED}
        for number in _FORWARDED:
            if before[number] != signal.SIG_IGN:  # nohup
                signal.signal(number, forward)
        try:
            yield
        finally:
            for number in _FORWARDED:
                signal.signal(number, before[number])


def detach(run: Callable[[], object]) -> None:
    """Do this in a process that goes on when this one ends, without its terminal."""
    if os.fork():
        return
    try:
        os.setsid()
        with open(os.devnull, "r+b", 0) as nothing:
            for fd in (0, 1, 2):
                os.dup2(nothing.fileno(), fd)
        run()
    finally:
        os._exit(0)
