"""What a keeper is told to do."""

from __future__ import annotations

import json
import os
from typing import NamedTuple


class Order(NamedTuple):
    """A run to be kept, as its keeper reads it.

    Attributes:
        id: Its key in the store.
        store: Folder of the store.
        folder: The run's folder in it.
        command: The program and its arguments.
        directory: Its working directory.
        environment: All its environment variables.
        path: Where Python finds the store's modules.
        time_limit_s: Seconds after which it is ended.
        orphans: What becomes of the run if what started it disappears: "end" or "keep".
        mps: Pipe directory of the MPS daemon that it is a client of; empty for none.
        merged: Whether standard output and error are one pipe, which keeps the order of what is printed to both.
        terminal: Which of descriptors 0 to 2 are to be a terminal of its own.
        size: Lines and columns of that terminal.
    """

    id: str
    store: str
    folder: str
    command: list[str]
    directory: str
    environment: dict[str, str]
    path: list[str]
    time_limit_s: float | None = None
    orphans: str = "end"
    mps: str = ""
    merged: bool = False
    terminal: tuple[bool, bool, bool] = (False, False, False)
    size: tuple[int, int] = (0, 0)

    def to_file(self) -> int:
        """Write the order into memory; return its descriptor."""
        fd = os.memfd_create("penstock-order")
        with open(fd, "w", closefd=False) as file:
            json.dump(self._asdict(), file)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    @classmethod
    def from_file(cls, fd: int) -> Order:
        """Read an order, and close its descriptor."""
        with open(fd) as file:
            return cls(**json.load(file))
