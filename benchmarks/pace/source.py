"""What is shared: JPEGs, or arrays of which all feeds of one ration together get so many a second."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import penstock

SAMPLE_BYTES, BLOCK = 3_072, 16
WINDOW = "5MiB"
"""Holds as many of these samples as 256 MiB do of images at 224 pixels."""


class Rationed(penstock.ArraySource):
    """Of which all feeds together get a number of samples a second, as if a lock, a disk or a server held them."""

    def __init__(self, samples: int, name: str) -> None:
        images = np.zeros((samples, SAMPLE_BYTES), np.uint8)
        super().__init__({"image": images, "id": np.arange(samples)}, batch_size=BLOCK, segments=1, seed=1)
        self._name = name  # not the file: a feed of data that have changed is another one

    def open(self, *args: Any) -> Iterator[Any]:
        for block in super().open(*args):
            self._wait()
            yield block

    def _wait(self) -> None:
        with ration_of(self._name).open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            now, ration = time.time(), json.load(file)
            rate = next(rate for from_s, rate in reversed(ration["rates"]) if now >= from_s)
            ration["free"] = max(now, ration["free"]) + BLOCK / rate
            file.seek(0)
            file.write(json.dumps(ration).ljust(256))
            file.flush()
        time.sleep(max(0.0, ration["free"] - now))


def ration_of(name: str) -> Path:
    return Path(tempfile.gettempdir(), f"{name}.ration")


def write_ration(name: str, began: float, rates: list[tuple[float, float]]) -> None:
    """Let feeds have rates, each from a second on."""
    ration = {"free": 0.0, "rates": [(0.0, 1e9), *((began + from_s, rate) for from_s, rate in rates)]}
    ration_of(name).write_text(json.dumps(ration).ljust(256))


def note_thread(file: Path) -> None:
    """Write, each second, for how long this process's feed is watched, and the CPU time of that and of all."""

    def note() -> None:
        began, watched = time.monotonic(), 0.0
        while True:
            time.sleep(1)
            for thread in threading.enumerate():
                if thread.name == "penstock-family":
                    watched = (
                        int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e9
                    )
            part = file.with_suffix(".part")
            part.write_text(f"{time.monotonic() - began} {watched} {time.process_time()}")
            part.replace(file)

    threading.Thread(target=note, daemon=True).start()


def made(kind: str, where: str, samples: int) -> Any:
    """Make what is shared; ``where`` is a folder of JPEGs, a ration, or a folder for notes of a feeder."""
    if kind == "images":
        return penstock.ImageSource(where, size=224, batch_size=32, seed=1)
    if kind == "rationed":
        return Rationed(samples, where)
    note_thread(Path(where, str(os.getpid())))
    return penstock.ArraySource({"image": np.zeros((samples, 65_536), np.uint8)}, batch_size=BLOCK, seed=1)


def maker(kind: str, where: str, samples: int) -> Any:
    return partial(made, kind, where, samples)
