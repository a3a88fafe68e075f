"""Runs groups one after the other in the foreground: shows what they print, and passes signals on to them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from types import FrameType

from penstock.basics.terminal import say
from penstock.errors import PenstockError
from penstock.inject import TOGETHER
from penstock.linux.process import NOTICES, SENT
from penstock.runs.elsewhere.jobs import JobPlace
from penstock.runs.elsewhere.launcher import LauncherElsewhere
from penstock.runs.launch.launcher import NO_TERMINAL, Launcher, RunEnded, RunPrinted
from penstock.runs.launch.terminal import Prefixed, Terminal, stdin_is_ours, terminals, write
from penstock.runs.modes.mode import Mode, mode_of, opened
from penstock.runs.record import ENDED, RunRecord
from penstock.runs.spec.needs import Room, after_unfinished, needs, runs_before
from penstock.runs.store import Store


class Admission:
    """Admits runs in order, but those that fit before those that do not fit yet."""

    def __init__(
        self,
        before: Mapping[str, Collection[str]],  # of each run, those that must have ended before it starts
        needs: Mapping[str, Mapping[str, int]],
        room: Mapping[str, int],  # how much of each there is
    ) -> None:
        self._waiting = {run: before.keys() & earlier for run, earlier in before.items()}  # others have ended
        self._needs = needs  # what each run takes while it runs, by names
        self._free = dict(room)

    def take(self) -> list[str]:
        """Return the runs that start now; they take room until their ``end``."""
        taken: list[str] = []
        for run, earlier in self._waiting.items():
            needs = self._needs[run].items()
            if not earlier and all(need <= self._free[name] for name, need in needs):
                self._free |= {name: self._free[name] - need for name, need in needs}
                taken.append(run)
        for run in taken:
            del self._waiting[run]
        return taken

    def end(self, run: str) -> None:
        """Take note that a run that was taken has ended, or will never begin."""
        self._free |= {name: self._free[name] + need for name, need in self._needs[run].items()}
        for earlier in self._waiting.values():
            earlier.discard(run)


_ONE_SIGNAL_S = 1.0
"""Ctrl-C twice within this time counts as one: ``timeout`` signals the process, and again its group."""


class GroupsInTurn:
    """What ``penstock run`` does once its runs are in the store."""

    def __init__(
        self,
        store: Store,
        groups: Sequence[Sequence[RunRecord]],
        *,
        listeners: Sequence[tuple[str, ...] | None],
        room: Room | None = None,  # what runs that say what they need may take together
        orphans: str = "end",  # what becomes of a run if this process disappears: "end" or "keep"
        below: Callable[[], list[str]] | None = None,  # lines below what several runs print; only for a terminal
        place: JobPlace | None = None,  # where the runs go, if not to this machine
    ) -> None:
        self._store = store  # where the runs wait
        self._groups = groups  # runs of each group, in order
        self._listeners = listeners  # what is sampled of each group's runs, as ``GroupPlan`` has it
        self._launcher = LauncherElsewhere(store, place) if place else Launcher(store, orphans=orphans)
        self._group_of = {record.id: place for place, group in enumerate(groups) for record in group}
        self._records = [record for group in groups for record in group]
        self._places = {record.id: place for place, record in enumerate(self._records)}
        self._before = runs_before(groups)
        self._finished = set[str]()
        self._room = room or {}
        self._one = len(self._records) == 1 and orphans == "end"
        self._ended_by = ""
        self._interrupted_s = float("inf")
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
                is_here = isinstance(self._launcher, Launcher)
                open_mode = opened(mode_of(records), records) if is_here else nullcontext(Mode())
                mode = until_all_ended.enter_context(open_mode)
            except PenstockError as error:
                say(str(error))
                for record in records:
                    self._store.ended(record.id, "failed", None, f"never began: {error}")
                return
            until_all_ended.callback(self._launcher.end_running)  # a mode waits for its runs when it closes
            self._run_admitted(records, mode)

    def _waits(self, record: RunRecord) -> bool:
        """Return whether a run is still to be started."""
        if self._ended_by:
            self._store.ended(record.id, "killed", None, f"never began: {self._ended_by}")
        elif missing := self._missing(record):
            self._store.ended(record.id, "failed", None, after_unfinished(missing.name, missing.status))
        return self._store.run(record.id).status == "waiting"

    def _missing(self, record: RunRecord) -> RunRecord | None:
        """Return a run that this one comes after and that has ended without having finished, if there is one."""
        for id in self._before[record.id]:
            if id not in self._finished:
                run = self._store.run(id)
                if run.status == "finished":
                    self._finished.add(id)
                elif run.status in ENDED:
                    return run
        return None

    def _run_admitted(self, records: Sequence[RunRecord], mode: Mode) -> None:
        """Start runs of a group as they are admitted, until all have ended."""
        terminal = terminals() if self._one and isinstance(self._launcher, Launcher) else NO_TERMINAL
        at_once = 1 if records[0].mode == "alone" else len(records)
        self._admission = Admission(
            {record.id: self._before[record.id] for record in records},
            {record.id: {"runs": 1, **needs(record.plan, self._room)} for record in records},
            {"runs": at_once, **self._room},
        )
        while self._start_admitted(mode, terminal) or self._launcher.running:
            if any(terminal) and self._launcher.running:
                self._pass_terminal(terminal)
            else:
                self._attend(self._shown.refresh())

    def _start_admitted(self, mode: Mode, terminal: tuple[bool, bool, bool]) -> bool:
        """Start what is admitted now; return whether anything was."""
        admitted = [self._records[self._places[id]] for id in self._admission.take()]
        together = [record for record in admitted if self._waits(record)]
        sharing = {TOGETHER: str(sum(record.plan.share is not None for record in together))}
        for record in together:
            if self._waits(record):
                # A signal must reach this run, too.
                blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SENT)
                listeners = self._listeners[self._group_of[record.id]]
                try:
                    if isinstance(self._launcher, LauncherElsewhere):
                        self._launcher.start(record, listeners)
                        continue
                    self._launcher.start(
                        record,
                        mode,
                        listeners=listeners,
                        variables=sharing if record.plan.share else {},
                        terminal=terminal,
                        stdin=self._one and stdin_is_ours(),
                    )
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        started = {run.record.id for run in self._launcher.running}
        for record in admitted:
            if record.id not in started:
                self._admission.end(record.id)
        return bool(admitted)

    def _pass_terminal(self, terminal: tuple[bool, bool, bool]) -> None:
        """Give the only run the terminal, until it has ended."""
        launcher = self._launcher
        assert isinstance(launcher, Launcher)
        (run,) = launcher.running
        while run.keeper is None and launcher.running:
            self._attend()  # it knows then how to restore the terminal
        with Terminal(run, terminal) as passed:
            while launcher.running:
                if passed.wait(launcher):
                    self._attend()

    def _attend(self, timeout_s: float | None = None) -> None:
        for event in self._launcher.events(timeout_s):
            match event:
                case RunPrinted(id, descriptor, data):
                    self._show(id, descriptor, data)
                case RunEnded(id):
                    with self._shows_on():
                        self._shown.close(self._places[id])
                    self._admission.end(id)
                case _:
                    pass

    def _show(self, id: str, descriptor: int, data: bytes) -> None:
        with self._shows_on():
            if self._shows and self._one:
                write(descriptor, data)
            elif self._shows:
                self._shown.add(self._places[id], descriptor, data)

    @contextmanager
    def _shows_on(self) -> Generator[None]:
        try:
            yield
        except BrokenPipeError:  # as for a program in a pipeline: it learns that when it next prints
            self._shows = False
            self._forward(signal.SIGTERM, "nobody reads the output of penstock run any more")

    def _forward(self, number: int, why: str) -> None:
        """Pass a signal on; only a second Ctrl-C kills."""
        kills = number == signal.SIGINT and time.monotonic() - self._interrupted_s >= _ONE_SIGNAL_S
        if number == signal.SIGINT:
            self._interrupted_s = min(self._interrupted_s, time.monotonic())
        if number not in NOTICES:
            self._ended_by = self._ended_by or why
        for run in self._launcher.running:
            if kills:
                run.kill(f"killed by a second {why}")
            else:
                run.send(signal=number, why=why)

    @contextmanager
    def _forwarding(self) -> Generator[None]:
        def forward(number: int, _frame: FrameType | None) -> None:
            name = signal.Signals(number).name
            self._forward(number, "Ctrl-C" if number == signal.SIGINT else f"{name} to penstock run")

        before = {number: signal.getsignal(number) for number in SENT}
        for number in SENT:
            if before[number] != signal.SIG_IGN:  # nohup
                signal.signal(number, forward)
        try:
            yield
        finally:
            for number in SENT:
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
