"""What a job's node and the process that started it send each other: lines of JSON."""

from __future__ import annotations

import msgspec

from penstock.runs.record import RunRecord, Status


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
