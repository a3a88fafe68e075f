"""Starts runs one at a time, and reports what they print and how they end."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Self

from penstock.basics.terminal import say
from penstock.errors import BadSetting
from penstock.inject import without_injection
from penstock.runs.launch.environment import describe_all
from penstock.runs.launch.launched import Launched
from penstock.runs.modes.mode import Mode
from penstock.runs.record import RunRecord
from penstock.runs.store import Store

NO_TERMINAL = (False, False, False)
_MOST_SAMPLERS = 10
_SAMPLER_ENDS_S = 5.0


class RunBegan(NamedTuple):
    """A run's command has started as a process."""

    id: str
    pid: int


class RunPrinted(NamedTuple):
    """A run, or its keeper, has printed to descriptor 1 or 2."""

    id: str
    descriptor: int
    data: bytes


class RunEnded(NamedTuple):
    """Nothing is left of a run, and the store has its end."""

    id: str


RunEvent = RunBegan | RunPrinted | RunEnded


class Launcher:
    """Starts runs that wait in a store, each below a keeper of its own, in a ``with`` block.

    At the end of the block, or by ``close``, runs that go on are ended; those
    that may outlive this process are left alone.
    """

    def __init__(self, store: Store, *, orphans: str = "end") -> None:
        self._store = store  # where the runs wait
        self._orphans = orphans  # what becomes of a run if this process disappears: "end" or "keep"
        self._running: dict[str, Launched] = {}
        self._new: list[tuple[Launched, tuple[str, ...] | None]] = []
        self._sampling = _Sampling(store)
        self._describing: list[threading.Thread] = []
        self._selector = selectors.EpollSelector()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running(self) -> list[Launched]:
        """The runs that were started and have not ended, in the order of their starts."""
        return list(self._running.values())

    def fileno(self) -> int:
        """Return a descriptor that can be read when ``events`` has something to do."""
        return self._selector.fileno()

    def start(
        self,
        record: RunRecord,  # a run that waits in the store
        mode: Mode | None = None,  # an open mode, of a set of runs that has this one; time slices, if None
        *,
        listeners: tuple[str, ...] | None = None,  # what is sampled of it; None for all that can run here
        variables: Mapping[str, str] = {},  # environment variables that it gets besides its mode's
        terminal: tuple[bool, bool, bool] = NO_TERMINAL,  # which of descriptors 0 to 2 are one; it gets its own
        stdin: bool = False,  # whether it gets this process's standard input; else it finds that empty
        held: Sequence[int] = (),
    ) -> Launched:
        """Start a run now; ``events`` reports its start, or its end if it cannot be executed.

        The descriptors ``held`` are open in its keeper as long as anything of it lives, and never in its command:
        a lock on such a file is free once nothing is left of the run.
        """
        if self._store.run(record.id).began is not None:
            raise BadSetting(f"run {record.id} cannot start: it has begun already")
        mode = mode or Mode()
        run = Launched(
            self._store,
            record,
            mode,
            orphans=self._orphans,
            terminal=terminal,
            stdin=stdin,
            variables={**mode.variables(record), **variables},
            held=held,
        )
        self._running[record.id] = run
        self._selector.register(run.link, selectors.EVENT_READ, run)
        self._new.append((run, listeners))
        return run

    def stop(self, id: str, why: str) -> None:
        """Ask a run to end (SIGTERM), and have it killed 5 s later if it has not; nothing if it does not run."""
        if run := self._running.get(id):
            run.send(end=why)

    def watch(self, id: str, listeners: tuple[str, ...] | None) -> None:
        """Sample a run that another process has started, until ``unwatch``."""
        self._sampling.begin(id, listeners)
        self._watch_sampling()

    def unwatch(self, id: str) -> None:
        """Sample a run no more that another process has started."""
        self._sampling.end(id)

    def events(self, timeout_s: float | None = None) -> Iterator[RunEvent]:
        """Wait up to ``timeout_s`` (None: for ever) for what runs do, and yield it; nothing if none runs."""
        self._attend_new()
        for key, _ in self._selector.select(timeout_s if self._running else 0):
            if isinstance(key.data, Launched):
                yield from self._heard(key.data)
            else:
                self._selector.unregister(key.fd)
                self._sampling.restart()
                self._watch_sampling()

    def end_running(self) -> None:
        """End the runs that may not outlive this process, and wait until nothing is left of them."""
        if self._orphans == "end":
            for id in self._running:
                self.stop(id, "what had started it has closed")
            while self._running:
                for _ in self.events():
                    pass

    def close(self) -> None:
        """End what runs, and wait until nothing is left of it.

        What may outlive this process goes on, but is sampled no more.
        """
        self.end_running()
        for id, run in self._running.items():
            run.leave()
            self._sampling.end(id)
        for thread in self._describing:
            thread.join()
        self._selector.close()
        self._sampling.close()

    def _attend_new(self) -> None:
        """Sample and describe the runs that were started; only now, so that no start waits for another's."""
        if not self._new:
            return
        new, self._new = self._new, []
        for run, listeners in new:
            self._sampling.begin(run.record.id, listeners)
        self._watch_sampling()
        started = [run for run, _ in new]
        thread = threading.Thread(target=describe_all, args=(self._store, started), name="penstock-environment")
        self._describing = [each for each in self._describing if each.is_alive()] + [thread]
        thread.start()

    def _watch_sampling(self) -> None:
        ended = self._sampling.ended
        if ended is not None and ended not in self._selector.get_map():
            self._selector.register(ended, selectors.EVENT_READ)

    def _heard(self, run: Launched) -> Iterator[RunEvent]:
        """Take what a run's keeper sends next."""
        id = run.record.id
        match run.receive():
            case None:
                self._selector.unregister(run.link)
                del self._running[id]
                run.close()
                self._sampling.end(id)
                yield RunEnded(id)
            case (descriptor, data):
                yield RunPrinted(id, descriptor, data)
            case {"keeper": pid}:
                run.keeper = pid
            case {"began": pid}:
                run.mode.began(run.record, pid, partial(_remark, run))
                yield RunBegan(id, pid)
            case {"said": text}:
                yield RunPrinted(id, 2, f"penstock: run {id}: {text}\n".encode())
            case _:
                pass


def _remark(run: Launched, text: str) -> None:
    """Print what is wrong with a run, and have it recorded in the run's reason."""
    say(f"run {run.record.id}: {text}")
    run.send(note=text)


class _Sampling:
    """Has listeners sampled while runs go on; that never stops or delays a run."""

    def __init__(self, store: Store) -> None:
        self._folder = store.folder
        self._runs: dict[str, tuple[str, ...] | None] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self.ended: int | None = None
        """A descriptor that can be read once the process has died; None without a process."""
        self._starts = 0

    def begin(self, id: str, listeners: tuple[str, ...] | None) -> None:
        """Sample a run from now on; nothing if ``listeners`` is empty."""
        if listeners == ():
            return
        self._runs[id] = listeners
        if self._process is None:
            self._start()
        else:
            self._send(type="begin", id=id, listeners=listeners)

    def end(self, id: str) -> None:
        """Sample a run no more."""
        if id in self._runs:
            del self._runs[id]
            self._send(type="end", id=id)

    def restart(self) -> None:
        """Start another process in place of one that died, a limited number of times."""
        self._reap()
        if self._runs and self._starts < _MOST_SAMPLERS:
            self._start()

    def close(self) -> None:
        """End the process, once it has written all that it sampled."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_SAMPLER_ENDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reap()

    def _start(self) -> None:
        self._starts += 1
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.runs.sampler", str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=without_injection(os.environ),
            start_new_session=True,
        )
        self.ended = os.pidfd_open(self._process.pid)
        for id, listeners in self._runs.items():
            self._send(type="begin", id=id, listeners=listeners)

    def _send(self, **message: Any) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            with suppress(OSError):  # it has died, and its successor gets all runs
                self._process.stdin.write(json.dumps(message).encode() + b"\n")
                self._process.stdin.flush()

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
            assert self._process.stdin is not None and self.ended is not None
            with suppress(OSError):
                self._process.stdin.close()
            os.close(self.ended)
            self._process = self.ended = None
