"""Starts runs on other machines, and records here what they do there."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec

from penstock.linux.process import NOTICES
from penstock.runs.elsewhere import PART_BYTES
from penstock.runs.elsewhere.jobs import JobPlace, ended_by_slurm, last_words, packed, variables
from penstock.runs.elsewhere.node import Began, EndedThere, FilePart, JobOrder, Lines, Packet, Printed, Words
from penstock.runs.keeper.output import Output
from penstock.runs.launch.launcher import RunBegan, RunEnded, RunEvent, RunPrinted
from penstock.runs.record import ENDED, RunRecord
from penstock.runs.store import Store
from penstock.runs.store.folder import usable

_LOOKS_S = 1.0


class _Job:
    """The command that is the connection to a job's node."""

    def __init__(self, words: list[str], order: JobOrder) -> None:
        self.ids = [run.id for run in order.runs]
        self.heard = False  # whether the node has sent anything
        self.sent = dict[str, str]()  # runs that were asked to end before the node answered, each with the reason
        self.pipes = 2  # how many of its two outputs have not ended
        self.errors = b""  # what it printed to standard error
        self.lines = Lines()
        self.number = ""  # Slurm's number of it, once a run has begun
        self._unwritten = b""
        self.process = subprocess.Popen(
            words,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables(),
            start_new_session=True,
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self._stdin, self.stdout, self.stderr = self.process.stdin, self.process.stdout, self.process.stderr
        os.set_blocking(self._stdin.fileno(), False)
        self._write(order)

    def _write(self, message: JobOrder | Words) -> None:
        self._unwritten += msgspec.json.encode(message) + b"\n"
        self.flush()

    def flush(self) -> None:
        """Write what its pipe has room for: the rest waits, since nothing here may wait for a job in a queue."""
        with suppress(BrokenPipeError):
            self._unwritten = self._unwritten[self._stdin.write(self._unwritten) or 0 :]

    def send(self, id: str, words: dict[str, str | int]) -> None:
        """Send words to a run's keeper; the job ends where none of its runs is to begin."""
        self._write(Words(id, words))
        if not self.heard and words.get("signal") not in NOTICES:
            self.sent[id] = str(words.get("why") or words.get("end") or words.get("kill"))
            if len(self.sent) == len(self.ids):
                self.process.terminate()


class RunElsewhere:
    """A run that was started on another machine, and has not ended."""

    def __init__(self, record: RunRecord) -> None:
        self.record = record  # the run, as it was before it began
        self.job: _Job | None = None  # its job; None until that is started
        self.unsent: list[dict[str, str | int]] = []  # what was to be sent to it before
        self.output: Output | None = None  # its stored output, once it has begun

    def send(self, **words: str | int) -> None:
        """Send a message to its keeper."""
        if self.job is None:
            self.unsent.append(words)
        else:
            self.job.send(self.record.id, words)

    def kill(self, why: str) -> None:
        """Kill it."""
        self.send(kill=why)


class LauncherElsewhere:
    """Starts runs that wait in a store on nodes of a cluster, as ``Launcher`` does here, in a ``with`` block.

    Runs that start between two calls of ``events`` and share a feed go to one node. Their records, output, series
    and files are written into the store while they go on.
    """

    def __init__(self, store: Store, place: JobPlace) -> None:
        self._store = store  # where the runs wait
        self._place = place  # where they go
        self._running: dict[str, RunElsewhere] = {}
        self._new: list[tuple[RunElsewhere, tuple[str, ...] | None]] = []
        self._selector = selectors.DefaultSelector()
        self._version = store.version()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End what runs, and wait for all that nodes have of it."""
        self.end_running()
        self._selector.close()

    @property
    def running(self) -> list[RunElsewhere]:
        """The runs that were started and have not ended, in the order of their starts."""
        return list(self._running.values())

    def start(self, record: RunRecord, listeners: tuple[str, ...] | None) -> None:
        """Start a run with the next ``events``."""
        run = self._running[record.id] = RunElsewhere(record)
        self._new.append((run, listeners))

    def end_running(self) -> None:
        """End the runs, and wait until nothing is left of them."""
        for run in self.running:
            run.send(end="what had started it has closed")
        while self._new or self._selector.get_map():
            for _ in self.events():
                pass

    def events(self, timeout_s: float | None = None) -> Iterator[RunEvent]:
        """Wait until runs do something, or for a second, and yield what they have done."""
        yield from self._start_jobs()
        self._end_stopped()
        for job in {run.job for run in self.running if run.job}:
            job.flush()
        wait_s = _LOOKS_S if timeout_s is None else min(timeout_s, _LOOKS_S)
        for key, _ in self._selector.select(wait_s if self._selector.get_map() else 0):
            job: _Job = key.data
            data = os.read(key.fd, PART_BYTES)
            if not data:
                self._selector.unregister(key.fileobj)
                job.pipes -= 1
                if not job.pipes:
                    yield from self._over(job)
            elif key.fileobj is job.stderr:
                job.errors += data
                yield RunPrinted(job.ids[0], 2, data)
            else:
                job.heard = True
                for line in job.lines.add(data):
                    packet = msgspec.json.decode(line, type=Packet)
                    if packet.id in job.ids:
                        yield from self._hear(packet, job)

    def _start_jobs(self) -> Iterator[RunEvent]:
        new, self._new = self._new, []
        if not new:
            return
        runs = [run for run, _ in new]
        for places in packed(runs[0].record.mode, [run.record.plan for run in runs]):
            pack = [runs[place] for place in places]
            order = JobOrder([run.record for run in pack], new[0][1], sys.executable)
            try:
                job = _Job(self._place.command([run.record.plan for run in pack]), order)
            except OSError as error:
                for run in order.runs:
                    self._store.ended(run.id, "failed", None, f"never began: {error}")
                    yield from self._gone(run.id)
                continue
            for run in pack:
                run.job = job
                for words in run.unsent:
                    run.send(**words)
            for pipe in (job.stdout, job.stderr):
                self._selector.register(pipe, selectors.EVENT_READ, job)

    def _end_stopped(self) -> None:
        """End runs whose end another process has recorded, which cannot reach them."""
        if self._version != (version := self._store.version()):
            self._version = version
            for run in self.running:
                record = self._store.run(run.record.id)
                if record.status in ENDED:
                    run.send(end=record.reason)

    def _hear(self, packet: Packet, job: _Job) -> Iterator[RunEvent]:
        folder = self._store.folder_of(packet.id)
        match packet:
            case Began(id, pid, number):
                job.number = number if self._place.on == "slurm" else ""
                self._running[id].output = Output(str(folder / "output"))
                self._store.began(id, keeper=None, pid=pid)
                yield RunBegan(id, pid)
            case Printed(id, descriptor, data):
                if (run := self._running.get(id)) and run.output:
                    run.output.add(data)
                yield RunPrinted(id, descriptor, data)
            case FilePart(_, path, at, data):
                if (folder / path).resolve().is_relative_to(folder.resolve()):  # it comes from another machine
                    _write(folder / path, at, data)
            case EndedThere(id, status, exit_code, reason):
                if status != "finished" and (why := ended_by_slurm(job.number, job.errors)):
                    status, reason = "killed", why
                self._store.ended(id, status, exit_code, reason)
                yield from self._gone(id)

    def _gone(self, id: str) -> Generator[RunEnded]:
        if (run := self._running.pop(id, None)) is not None:
            if run.output:
                run.output.close()
            yield RunEnded(id)

    def _over(self, job: _Job) -> Iterator[RunEvent]:
        """Record the end of those runs of a job that nobody else has recorded."""
        with job.process:
            pass
        left = [(id, self._running[id]) for id in job.ids if id in self._running]
        why, by = last_words(job.errors), ended_by_slurm(job.number, job.errors) if left else ""
        for id, run in left:
            if run.output and by:
                self._store.ended(id, "killed", None, by)
            elif run.output:
                self._store.ended(id, "lost", None, f"its node reports no more: {why}")
            elif id in job.sent:
                self._store.ended(id, "killed", None, f"never began: {job.sent[id]}")
            else:
                self._store.ended(id, "failed", None, f"never began: {_explained(why)}")
            yield from self._gone(id)


def _explained(why: str) -> str:
    if "No module named" in why or "execve()" in why:
        return f"each node needs {sys.executable} with this Penstock: {why}"
    return why


def _write(path: Path, at: int, data: bytes) -> None:
    with usable(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as file:
            file.seek(at)
            file.write(data)
