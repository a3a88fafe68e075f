"""A far side without a GPU: another process that decodes by libjpeg-turbo, and misbehaves as it is told to.

It finds what it is to do in the environment, as JSON: see ``Behaviour``.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import simplejpeg

from penstock.contracts import ByteArray
from penstock.sources.images.batches import BatchStep, Crop, OutOfMemory
from penstock.sources.images.recipe import ImageRecipe
from penstock.sources.samples.worker import Made, SampleTask, SampleWriter
from penstock.sources.workers import Steps
from penstock.sources.workers.process import serve_batches

VARIABLE = "PENSTOCK_TESTS_FAR_SIDE"


class Behaviour(msgspec.Struct, frozen=True):
    """How it behaves; batches are counted over all of its processes, in a file."""

    counter: str = ""  # the file in which each batch leaves a byte; empty for none
    stops: dict[int, str] = {}
    """What happens in a batch, by its number: "KILL" or another signal, "raise", "full", or "sleep 0.1"."""
    signals: dict[int, str] = {}
    """The signal that comes as a task begins, or just before it is answered, by the number of that moment."""
    images_per_s: float = 0.0  # its rate; 0 for as fast as it can
    jitter: float = 0.0  # by which part of a batch's time that varies
    writes_early: bool = False  # whether it decodes into memory of the batch before at once
    refuses: int = 0  # one image of so many cannot be decoded by it; 0 for none
    marks: bool = False  # whether its pixels are half as bright

    def environment(self) -> tuple[str, str]:
        return VARIABLE, msgspec.json.encode(self).decode()


class TurboDevice:
    """Whole images by libjpeg-turbo; crops are made when they are waited for, as by a stream."""

    def __init__(self, recipe: ImageRecipe, behaviour: Behaviour) -> None:
        self._how, self._behaves = recipe.augmentation, behaviour
        self._begun: list[Callable[[], None]] = []
        self._memory: dict[int, ByteArray] = {}  # of decoded images, used again by each batch
        self._random = Random(0)

    def decode(self, jpegs: Sequence[bytes], sizes: Sequence[tuple[int, int]]) -> Sequence[Any]:
        began = time.perf_counter()
        self._misbehave()
        frames = [*map(self._decoded, range(len(jpegs)), jpegs)]
        assert [each.shape[:2] for each in frames if each is not None] == [
            size for size, each in zip(sizes, frames, strict=True) if each is not None
        ]
        if rate := self._behaves.images_per_s:
            takes_s = len(jpegs) / rate * (1 + self._behaves.jitter * self._random.uniform(-1, 1))
            time.sleep(max(0.0, takes_s - (time.perf_counter() - began)))
        return frames

    def _decoded(self, number: int, jpeg: bytes) -> ByteArray | None:
        if self._behaves.refuses and crc32(jpeg) % self._behaves.refuses == 0:
            return None
        height, width, *_ = simplejpeg.decode_jpeg_header(jpeg)
        memory = self._memory.get(number, np.empty(0, np.uint8))
        if memory.nbytes < (nbytes := height * width * 3) or not self._behaves.writes_early:
            memory = self._memory[number] = np.empty(nbytes, np.uint8)
        return simplejpeg.decode_jpeg(jpeg, "RGB", buffer=memory[:nbytes].reshape(height, width, 3))

    def finish(self, frames: Sequence[Any], crops: Sequence[Crop]) -> ByteArray:
        out = np.zeros((len(crops), self._how.size, self._how.size, 3), np.uint8)

        def make() -> None:
            for (image, (top, left, height, width), mirrored), to in zip(crops, out, strict=True):
                resized = self._how.resize(frames[image][top : top + height, left : left + width])
                to[:] = (resized[:, ::-1] if mirrored else resized) // (1 + self._behaves.marks)

        self._begun.append(make)
        return out

    def synchronize(self) -> None:
        while self._begun:
            self._begun.pop(0)()

    def _misbehave(self) -> None:
        does = self._behaves.stops.get(count(self._behaves.counter), "")
        if does == "raise":
            raise RuntimeError("an error of the driver's")
        if does == "full":
            raise OutOfMemory
        if does.startswith("sleep "):
            time.sleep(float(does.removeprefix("sleep ")))
        elif does:
            os.kill(os.getpid(), signal.Signals[f"SIG{does}"])


def count(counter: str) -> int:
    """Count to one more; return it."""
    if not counter:
        return 0
    with open(counter, "ab") as file:
        file.write(b".")
        return file.tell()


class Writer(SampleWriter):
    """Makes parts, unless a signal comes."""

    def __init__(self, behaviour: Behaviour, recipe: ImageRecipe, *rest: Any) -> None:
        super().__init__(recipe, *rest, BatchStep(recipe, TurboDevice(recipe, behaviour)))
        self._behaves = behaviour

    def __call__(self, task: SampleTask) -> Steps[Made]:
        self._comes()
        made = yield from super().__call__(task)
        self._comes()
        return made

    def _comes(self) -> None:
        if self._behaves.signals and (its := self._behaves.signals.get(count(f"{self._behaves.counter}-tasks"))):
            os.kill(os.getpid(), signal.Signals[f"SIG{its}"])


def writer(recipe: ImageRecipe, *rest: Any) -> SampleWriter:
    """Make what makes parts."""
    behaviour = msgspec.json.decode(os.environ.get(VARIABLE, "{}"), type=Behaviour)
    return Writer(behaviour, recipe, *rest)


def batches(behaviour: Behaviour) -> int:
    """Return how many batches were begun."""
    path = Path(behaviour.counter)
    return path.stat().st_size if path.exists() else 0


def main(fd: int) -> None:
    """Be the far side."""
    serve_batches(fd, writer)
