"""Looks after one run, from the start of its command until nothing of it is left."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import termios
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from penstock.linux.cgroups import oom_kills
from penstock.linux.process import NOTICES, addressed, descendants, reap, survives, who
from penstock.runs.keeper.command import Signals, Verdict, resize, start, verdict
from penstock.runs.keeper.link import CHUNK_BYTES, ENDED_LINK, MOST_WAITING, Assignment, Link
from penstock.runs.keeper.output import Output

if TYPE_CHECKING:
    from penstock.runs.record import Status

GRACE_S = 5.0
"""Seconds that a command may take to end once it has been asked to."""

_LEFTOVERS_GRACE_S = 2.0

FEEDER = b"penstock.feed.launch"
"""In the command line of a feeder that ``share()`` started: it serves other runs too, and ends without help."""


class Keeper:
    """The keeper of one run; ``link`` is a sequenced socket to what started the run."""

    def __init__(self, assignment: Assignment, link: int) -> None:
        self._assignment = assignment
        self._link = Link(link)
        self._signals = Signals()
        self._typed = b""
        self._returned: int | None = None
        self._ended_as = self._why = self._remark = ""
        self._kill_at: float | None = None
        self._cooked = termios.tcgetattr(0) if assignment.terminal[0] else None

    def run(self) -> None:
        """Run the command to its end, and record that."""
        self._link.report(keeper=os.getpid())
        oom_before = oom_kills()
        began_s = time.monotonic()
        try:
            self._command = start(self._assignment)
        except OSError as error:
            code = 127 if isinstance(error, (FileNotFoundError, NotADirectoryError)) else 126
            self._returned = code
            self._record_ended(Verdict("failed", code, f"could not be started: {error}"))
            self._link.report(ended=True)
            return
        if not self._assignment.terminal[0]:
            with open(os.devnull, "r+b", 0) as nothing:
                os.dup2(nothing.fileno(), 0)
        if not self._record_began(time.time()):
            self._signal_all(signal.SIGKILL)
            self._link.report(said="another keeper has begun it: this start of it was ended")
            return
        self._output = Output(f"{self._assignment.folder}/output")
        limit_s = self._assignment.time_limit_s
        limit_at = began_s + limit_s if limit_s is not None else None
        while self._returned is None:
            moments = limit_at, self._kill_at, self._signals.next_s
            self._step(min((at for at in moments if at is not None), default=None))
            for number in self._signals.due():
                if not self._signals.has_reached(number):
                    self._signal_command(number)
            if limit_at is not None and time.monotonic() >= limit_at:
                limit_at = None
                self._end("timed_out", f"ran longer than its time limit of {limit_s:g} s")
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill_at = None
                self._signal_all(signal.SIGKILL)
        self._read_all()
        if not self._ended_as and (why := self._signals.why.get(-self._returned)):
            self._ended_as, self._why = "signalled", why
        self._record_ended(
            verdict(
                self._returned,
                ended_as=self._ended_as,
                why=self._why,
                recent=self._output.recent,
                oom_killed=oom_kills() > oom_before,
            )
        )
        self._end_leftovers()
        self._read_all()
        self._record_cpu()
        self._output.close()
        if self._output.failed:
            self._link.report(said=f"not all of its output is stored: {self._output.failed}")
        self._link.report(ended=True)
        while not self._link.idle:
            self._step(None)

    def _step(self, until: float | None) -> None:
        """Wait for something to do, at most until a moment of the monotonic clock, and do it."""
        poll, outputs, terminal = select.poll(), self._command.outputs, self._command.terminal
        poll.register(self._signals.fd, select.POLLIN)
        self._link.register(poll)
        if not self._link.full:  # else what reads our output is slow, and so is the run
            for fd in outputs:
                poll.register(fd, select.POLLIN)
        if self._typed and terminal in outputs:
            poll.register(terminal, select.POLLIN | select.POLLOUT)
        timeout_ms = None if until is None else max(0, until - time.monotonic()) * 1000 + 1
        for fd, events in poll.poll(timeout_ms):
            if fd == self._signals.fd:
                self._hear_signals()
            elif fd == self._link.fd:
                self._talk(events)
            elif fd in outputs:
                if events & select.POLLOUT:
                    self._type(b"")
                if events & ~select.POLLOUT:
                    self._read(fd)

    def _read(self, fd: int) -> bool:
        """Take what was printed to one descriptor; return whether there may be more."""
        try:
            data = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # a terminal that nobody has open any more
            data = b""
        if not data:
            del self._command.outputs[fd]
            os.close(fd)
            return False
        self._output.add(data)
        self._link.send(b"%d" % self._command.outputs[fd] + data)
        return True

    def _read_all(self) -> None:
        """Take what was printed until now, and no more: something of the run may print for ever."""
        for fd in list(self._command.outputs):
            for _ in range(MOST_WAITING):
                if not self._read(fd):
                    break

    def _talk(self, events: int) -> None:
        if events & select.POLLOUT:
            self._link.flush()
        if not events & ~select.POLLOUT:
            return
        packet = self._link.receive()
        if packet == b"":
            self._abandoned()
        elif packet and packet.startswith(b"i"):
            self._type(packet[1:])
        elif packet:
            self._obey(json.loads(packet))

    def _obey(self, message: dict[str, Any]) -> None:
        terminal = self._command.terminal
        if "kill" in message:
            self._ended_as, self._why = "killed", message["kill"]
            self._kill_at = time.monotonic()
        elif "end" in message:
            self._end("killed", message["end"])
        elif "signal" in message:
            if message["signal"] not in NOTICES:
                self._ended_as, self._why = self._ended_as or "signalled", self._why or message["why"]
            self._signals.ask(message["signal"], message["why"])
        elif "note" in message:
            self._remark = message["note"]
        elif "size" in message and terminal in self._command.outputs:
            resize(terminal, message["size"])

    def _type(self, data: bytes) -> None:
        self._typed += data
        terminal = self._command.terminal
        try:
            while self._typed and terminal in self._command.outputs:
                self._typed = self._typed[os.write(terminal, self._typed) :]
        except BlockingIOError:
            return
        except OSError:  # nobody has the terminal open any more
            self._typed = b""

    def _abandoned(self) -> None:
        """Go on, or end, without what started the run."""
        with suppress(termios.error):  # it may have been closed
            # Raw as penstock run had set it; as a shell's line editor sets it, output is still processed.
            if self._cooked and not termios.tcgetattr(0)[1] & termios.OPOST:
                termios.tcsetattr(0, termios.TCSANOW, self._cooked)
        gone = "penstock run, which had started it, has disappeared"
        if self._assignment.orphans == "end":
            self._end("killed", gone)

    def _end(self, ended_as: str, why: str) -> None:
        if self._ended_as not in ("killed", "timed_out"):
            self._ended_as, self._why = ended_as, why
            self._kill_at = time.monotonic() + GRACE_S
            self._signal_command(signal.SIGTERM)

    def _hear_signals(self) -> None:
        for received in self._signals.read(self._command.pid, lambda: descendants(os.getpid(), without=FEEDER)):
            self._end("killed", f"ended by {who(received.pid)}")
        if (status := reap().get(self._command.pid)) is not None:
            self._returned = os.waitstatus_to_exitcode(status)

    def _signal_command(self, number: int) -> None:
        if self._returned is None:
            pids = addressed(self._command.pid, number, without=FEEDER)
            self._signals.tell(number, pids)
            self._signal_each(number, pids)

    def _signal_all(self, number: int) -> None:
        """Signal every process of the run."""
        self._signal_each(number, descendants(os.getpid(), without=FEEDER))

    def _signal_each(self, number: int, pids: list[int]) -> None:
        self._spare_other_clients(number, pids)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _spare_other_clients(self, number: int, pids: list[int]) -> None:
        """Have the MPS daemon end what processes do on GPUs if they are to die of a signal at once."""
        if self._assignment.mps and (dying := [pid for pid in pids if not survives(pid, number)]):
            from penstock.runs.modes.daemon import end_clients

            end_clients(self._assignment.mps, dying)

    def _end_leftovers(self) -> None:
        """End what is left of the run; what does something at a signal that it has got may do that to its end."""
        asked = set[int]()
        kill_at = time.monotonic() + _LEFTOVERS_GRACE_S
        while left := descendants(os.getpid(), without=FEEDER):
            is_killed = self._kill_at is not None and time.monotonic() >= self._kill_at
            left = [pid for pid in left if is_killed or not self._signals.heeds(pid)]
            if is_killed or time.monotonic() >= kill_at:
                self._signal_each(signal.SIGKILL, left)
            elif new := [pid for pid in left if pid not in asked]:
                self._signal_each(signal.SIGTERM, new)
                asked |= {*new}
            self._step(time.monotonic() + 0.1)

    def _store(self) -> Any:
        sys.path[:] = self._assignment.path
        from penstock.runs.store import Store

        return Store.open(Path(self._assignment.store))

    @contextmanager
    def _recording(self, what: str) -> Generator[None]:
        """Record something; a full disk is no reason for the run to end."""
        try:
            yield
        except Exception as error:
            self._link.report(said=f"{what} could not be recorded: {error}")

    def _record_began(self, time_s: float) -> bool:
        """Record that the run has begun; return False if another keeper had begun it before."""
        status: Status | Literal[""] = ""
        is_ours = True
        with self._recording("its beginning"), self._store() as store:
            from penstock.runs.store.database import this_process

            keeper = this_process()
            known_by = (keeper.pid, keeper.started_ticks)
            is_first = store.began(self._assignment.id, keeper=known_by, pid=self._command.pid, time_s=time_s)
            record = store.run(self._assignment.id)
            status, is_ours = record.status, is_first or record.began is None
        if not is_ours:
            return False
        if status:
            self._link.report(began=self._command.pid)
        if status not in ("", "running"):
            self._end("killed", "was ended before it began")
        return True

    def _record_cpu(self) -> None:
        """Record the CPU time of all reaped processes: the sampler misses a run's last second."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        with self._recording("its CPU time"):
            from penstock.runs.store import SeriesWriter, points_file

            writer = SeriesWriter(points_file(Path(self._assignment.folder), "keeper"))
            writer.add("run.cpu_s", used.ru_utime + used.ru_stime)
            writer.close()

    def _record_ended(self, ended: Verdict) -> None:
        with self._recording(f"its end ({ended.status}, {ended.reason})"):
            try:
                with self._store() as store:
                    from penstock.runs.masking import masked_reason

                    reason = "; ".join(filter(None, (ended.reason, self._remark)))
                    shown = masked_reason(reason, self._assignment.command)
                    store.ended(self._assignment.id, ended.status, ended.exit_code, shown)
            except Exception as error:  # a full disk has room for a link, which needs none
                os.symlink(f"{ended.status} {ended.exit_code}", f"{self._assignment.folder}/{ENDED_LINK}")
                self._link.report(said=f"of its end only '{ended.status}' and the exit code are recorded: {error}")
