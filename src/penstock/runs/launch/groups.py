"""Runs groups one after the other in the foreground: shows what they print, and passes signals on to them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType

from penstock.basics.terminal import say
from penstock.errors import PenstockError
from penstock.inject import TOGETHER
from penstock.runs.launch.launcher import NO_TERMINAL, Launcher, RunEnded, RunPrinted
from penstock.runs.launch.terminal import Prefixed, Terminal, stdin_is_ours, terminals, write
from penstock.runs.modes.mode import Mode, mode_of, opened
from penstock.runs.record import RunRecord
from penstock.runs.store import Store

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ONE_SIGNAL_S = 1.0
"""Signals within this time count as one: ``timeout`` signals the process, and again its group."""


class GroupsInTurn:
    """What ``penstock run`` does once its runs are in the store.

    Args:
        store: Where the runs wait.
        groups: Runs of each group, in order.
        listeners: What is sampled of each group's runs, as ``GroupPlan`` has it.
        on_change: Called when a run has begun and when it has ended, with the place of its group and the run.
        orphans: What becomes of a run if this process disappears: "end" or "keep".
        below: Returns the lines to be shown below what several runs print; only for a terminal.
    """

    def __init__(
        self,
        store: Store,
        groups: Sequence[Sequence[RunRecord]],
        *,
        listeners: Sequence[tuple[str, ...] | None],
        on_change: Callable[[int, RunRecord], None] | None = None,
        orphans: str = "end",
        below: Callable[[], list[str]] | None = None,
    ) -> None:
        self._store = store
        self._groups = groups
        self._listeners = listeners
        self._on_change = on_change
        self._launcher = Launcher(store, orphans=orphans)
        self._group_of = {record.id: place for place, group in enumerate(groups) for record in group}
        self._records = [record for group in groups for record in group]
        self._places = {record.id: place for place, record in enumerate(self._records)}
        self._one = len(self._records) == 1 and orphans == "end"
        self._ended_by = ""
        self._ended_at_s = 0.0
        self._shown = Prefixed([record.name for record in self._records], below)
        self._shows = True

    def run(self) -> list[RunRecord]:
        """Run all to their end; return their records."""
        with self._forwarding():
            try:
                with self._launcher:
                    for group in self._groups:
                        if waiting := [record for record in group if self._waits(record)]:
                            self._run_group(waiting)
                    self._shown.end()
            except Exception as error:
                for record in self._records:
                    if self._store.run(record.id).status == "waiting":
                        self._store.ended(record.id, "failed", None, f"never began: {error}")
                raise
            for record in self._records:
                self._store.compact(record.id)
        return [self._store.run(record.id) for record in self._records]

    def _run_group(self, records: Sequence[RunRecord]) -> None:
        with ExitStack() as until_all_ended:
            try:
                mode = until_all_ended.enter_context(opened(mode_of(records), records))
            except PenstockError as error:
                say(str(error))
                for record in records:
                    self._store.ended(record.id, "failed", None, f"never began: {error}")
                    self._note(record.id)
                return
            until_all_ended.callback(self._launcher.end_running)  # a mode waits for its runs when it closes
            for together in [[record] for record in records] if records[0].mode == "alone" else [records]:
                self._run_together(together, mode)

    def _waits(self, record: RunRecord) -> bool:
        """Return whether a run is still to be started."""
        if self._ended_by:
            self._store.ended(record.id, "killed", None, f"never began: {self._ended_by}")
        return self._store.run(record.id).status == "waiting"

    def _run_together(self, records: Sequence[RunRecord], mode: Mode) -> None:
        terminal = terminals() if self._one else NO_TERMINAL
        sharing = {TOGETHER: str(sum(record.plan.share is not None for record in records))}
        for record in records:
            if self._waits(record):
                # A signal must reach this run, too.
                blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
                try:
                    self._launcher.start(
                        record,
                        mode,
                        listeners=self._listeners[self._group_of[record.id]],
                        variables=sharing if record.plan.share else {},
                        terminal=terminal,
                        stdin=self._one and stdin_is_ours(),
                    )
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        running = self._launcher.running
        for run in running:
            self._note(run.record.id)
        if not any(terminal) or not running:
            while self._launcher.running:
                self._attend(self._shown.refresh())
            return
        while running[0].keeper is None and self._launcher.running:
            self._attend()  # it knows then how to restore the terminal
        with Terminal(running[0], terminal) as passed:
            while self._launcher.running:
                if passed.wait(self._launcher):
                    self._attend()

    def _attend(self, timeout_s: float | None = None) -> None:
        for event in self._launcher.events(timeout_s):
            match event:
                case RunPrinted(id, descriptor, data):
                    self._show(id, descriptor, data)
                case RunEnded(id):
                    self._shown.close(self._places[id])
                    self._note(id)
                case _:
                    pass

    def _note(self, id: str) -> None:
        """Report a run that has begun or ended to ``on_change``."""
        if self._on_change:
            try:
                self._on_change(self._group_of[id], self._store.run(id))
            except PenstockError as error:
                say(str(error))

    def _show(self, id: str, descriptor: int, data: bytes) -> None:
        if self._shows:
            try:
                if self._one:
                    write(descriptor, data)
                else:
                    self._shown.add(self._places[id], descriptor, data)
            except BrokenPipeError:  # as for a program in a pipeline: it learns that when it next prints
                self._shows = False
                self._forward(signal.SIGTERM, "nobody reads the output of penstock run any more")

    def _forward(self, number: int, why: str) -> None:
        if self._ended_by:
            if time.monotonic() - self._ended_at_s >= _ONE_SIGNAL_S:
                for run in self._launcher.running:
                    run.kill(f"killed by a second signal: {why}")
            return
        self._ended_by, self._ended_at_s = why, time.monotonic()
        for run in self._launcher.running:
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
