"""``python -m penstock.runs.elsewhere.node``: start the runs of a job here, and report them to what ordered them.

Standard input is a ``JobOrder``, then ``Words``, standard output is packets, all in lines of JSON. The runs have a
store of their own in a temporary folder; its files go home as they grow. If standard input ends, they do too.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from penstock.errors import PenstockError
from penstock.inject import TOGETHER
from penstock.linux.files import taken
from penstock.linux.leftovers import remove_abandoned
from penstock.linux.process import SENT
from penstock.runs.elsewhere import PART_BYTES
from penstock.runs.launch.launcher import Launcher, RunBegan, RunEnded, RunEvent, RunPrinted
from penstock.runs.masking import masked_plan
from penstock.runs.modes.mode import mode_of, opened
from penstock.runs.record import RunRecord, Status
from penstock.runs.store import Store
from penstock.runs.store.parameters import PARAMETERS

_EVERY_S = 1.0
_PREFIX = "penstock-job-"
_GONE = "penstock run, which had started it, has disappeared"


class JobOrder(msgspec.Struct):
    """The first line to a node: the runs of a job."""

    runs: list[RunRecord]  # they belong to one group
    listeners: tuple[str, ...] | None  # what is sampled of them, as ``GroupPlan`` has it
    python: str  # the Python of this machine; commands that begin with it use the node's


class Words(msgspec.Struct):
    """Each later line to a node: words for a run's keeper there, as ``Launched.send`` takes them."""

    id: str
    words: dict[str, str | int]


class Began(msgspec.Struct, tag=True):
    """A run's command has started on the node."""

    id: str
    pid: int
    job: str = ""  # Slurm's number of its job; "" on Ray


class Printed(msgspec.Struct, tag=True):
    """A run has printed to descriptor 1 or 2."""

    id: str
    descriptor: int
    data: bytes


class FilePart(msgspec.Struct, tag=True):
    """Bytes of a file in a run's folder, whose path counts from there."""

    id: str
    path: str
    at: int
    data: bytes


class EndedThere(msgspec.Struct, tag=True):
    """Nothing is left of a run on the node; parts of its files may still come."""

    id: str
    status: Status
    exit_code: int | None
    reason: str


Packet = Began | Printed | FilePart | EndedThere


class Lines:
    """Cuts into lines what is read from a pipe."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, data: bytes) -> list[bytes]:
        """Return the lines that this ends."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        return whole


class _Home:
    """What ordered the runs: it gets packets and files."""

    def __init__(self, store: Store, packets: int) -> None:
        self._store = store
        self._packets = packets
        self._sent: dict[Path, int] = {}

    def send(self, packet: Packet) -> None:
        line = memoryview(msgspec.json.encode(packet) + b"\n")
        with suppress(BrokenPipeError):  # standard input has ended, too, and so do the runs
            while line:
                line = line[os.write(self._packets, line) :]

    def bring(self, id: str, *, files: bool) -> None:
        """Send what was added to a run's files since the last call; what its command wrote only if ``files``."""
        folder = self._store.folder_of(id)
        written = folder.glob("files/**/*") if files else ()
        for path in (*folder.glob("series/*.points"), folder / "environment.json", folder / PARAMETERS, *written):
            if path.is_file():
                with path.open("rb") as file:
                    at = file.seek(self._sent.get(path, 0))
                    while (data := file.read(PART_BYTES)) or path not in self._sent:
                        self.send(FilePart(id, str(path.relative_to(folder)), at, data))
                        self._sent[path] = at = at + len(data)

    def report(self, event: RunEvent) -> None:
        match event:
            case RunBegan(id, pid):
                self.send(Began(id, pid, os.environ.get("SLURM_JOB_ID", "")))
            case RunPrinted(id, descriptor, data):
                self.send(Printed(id, descriptor, data))
            case RunEnded(id):
                self.bring(id, files=True)
                run = self._store.run(id)
                self.send(EndedThere(id, run.status, run.exit_code, run.reason))


def main() -> None:
    """Run a job."""
    packets = os.dup(1)
    os.dup2(2, 1)  # what else is printed is no packet
    lines, received = Lines(), list[bytes]()
    while not received:
        if not (data := os.read(0, PART_BYTES)):
            return
        received = lines.add(data)
    order = msgspec.json.decode(received.pop(0), type=JobOrder)
    remove_abandoned(_PREFIX)
    with TemporaryDirectory(prefix=_PREFIX) as folder, Store.open(Path(folder)) as store:
        taken(Path(folder), os.O_RDONLY)  # until this process ends
        home = _Home(store, packets)
        runs = [_of_this_machine(run, order.python) for run in order.runs]
        store.adopt([msgspec.structs.replace(run, plan=masked_plan(run.plan)) for run in runs])
        try:
            _run(runs, order, home, store, lines, received)
        except PenstockError as error:
            for run in runs:
                home.send(EndedThere(run.id, "failed", None, f"never began: {error}"))
        for run in runs:
            home.bring(run.id, files=True)


def _run(
    runs: Sequence[RunRecord], order: JobOrder, home: _Home, store: Store, lines: Lines, received: list[bytes]
) -> None:
    sharing = {TOGETHER: str(sum(run.plan.share is not None for run in runs))}
    with opened(mode_of(runs), runs) as mode, Launcher(store) as launcher:

        def end(number: int, _: object) -> None:
            for run in launcher.running:
                run.send(signal=number, why=f"its job got {signal.Signals(number).name}")

        for number in SENT:
            signal.signal(number, end)
        for run in runs:
            launcher.start(run, mode, listeners=order.listeners, variables=sharing if run.plan.share else {})
        ordered, due_s = [0], time.monotonic()
        while launcher.running:
            running = {run.record.id: run for run in launcher.running}
            for message in (msgspec.json.decode(line, type=Words) for line in received):
                if (run := running.get(message.id)) and "kill" in message.words:
                    run.kill(str(message.words["kill"]))
                elif run:
                    run.send(**message.words)
            for event in launcher.events(0):
                home.report(event)
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + _EVERY_S
                for run in launcher.running:
                    home.bring(run.record.id, files=False)
            received = []
            if 0 in select.select([launcher, *ordered], [], [], _EVERY_S)[0]:
                received = lines.add(data := os.read(0, PART_BYTES))
                if not data:
                    ordered = []
                    for run in launcher.running:
                        run.send(end=_GONE)


def _of_this_machine(run: RunRecord, python: str) -> RunRecord:
    """Return a run whose script runs under this machine's Python."""
    words = run.plan.command
    command = (sys.executable, *words[1:]) if words[0] == python else words
    return msgspec.structs.replace(run, plan=msgspec.structs.replace(run.plan, command=command))


if __name__ == "__main__":
    main()
