"""A queue that misbehaves as storage can: errors, short reads, delays, any order."""

from __future__ import annotations

import errno
import random

import numpy as np

from penstock.contracts import Opened
from penstock.io.queue import Queue, Reads, Results


class FaultyQueue:
    """Adds faults to a queue.

    Args:
        queue: The queue that reads.
        seed: Random seed of all faults.
        errors: Part of the reads that end in EIO.
        shorts: Part of the reads that bring only some of their bytes.
        repeats: Part of the reads that end in EINTR or EAGAIN, to be asked for again.
        disorder: Whether results are held back and given in any order.

    Attributes:
        failed: (file, offset) of each read that was made to fail.
    """

    def __init__(
        self,
        queue: Queue,
        seed: int,
        *,
        errors: float = 0.0,
        shorts: float = 0.0,
        repeats: float = 0.0,
        disorder: bool = True,
    ) -> None:
        self.mech = queue.mech
        self.depth = queue.depth
        self.failed: list[tuple[int, int]] = []
        self._queue = queue
        self._random = random.Random(seed)
        self._errors, self._shorts, self._repeats, self._disorder = errors, shorts, repeats, disorder
        self._ready: list[tuple[int, int]] = []
        self._reasons: dict[int, str] = {}

    @property
    def alignment(self) -> int:
        return self._queue.alignment

    @property
    def path_taken(self) -> str:
        return self._queue.path_taken

    def open(self, path: str) -> Opened:
        return self._queue.open(path)

    def push(self, reads: Reads) -> None:
        forwarded: list[tuple[int, ...]] = []
        for i, file, offset, nbytes, address in zip(*(field.tolist() for field in reads), strict=True):
            if self._random.random() < self._errors:
                self._ready.append((i, -errno.EIO))
                self.failed.append((file, offset))
            elif self._random.random() < self._repeats:
                self._ready.append((i, -self._random.choice((errno.EINTR, errno.EAGAIN))))
            elif nbytes > self.alignment and self._random.random() < self._shorts:
                some = self._random.randrange(1, nbytes // self.alignment + 1) * self.alignment
                forwarded.append((i, file, offset, min(some, nbytes), address))
            else:
                forwarded.append((i, file, offset, nbytes, address))
        if forwarded:
            self._queue.push(Reads(*np.array(forwarded, np.int64).T))

    def pop(self, at_least: int) -> Results:
        if len(self._ready) < at_least:
            results = self._queue.pop(at_least - len(self._ready))
            self._ready += zip(results.ids.tolist(), results.nbytes.tolist(), strict=True)
            self._reasons |= results.reasons
        if self._disorder:
            self._random.shuffle(self._ready)
            given = self._random.randint(at_least, len(self._ready))
        else:
            given = len(self._ready)
        now, self._ready = self._ready[:given], self._ready[given:]
        ids, nbytes = np.array(now, np.int64).reshape(-1, 2).T
        given_reasons = {i: self._reasons.pop(i) for i in ids.tolist() if i in self._reasons}
        return Results(ids, nbytes, given_reasons)

    def close(self) -> None:
        self._queue.close()
