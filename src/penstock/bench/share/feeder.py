"""The process of a measured feeder: ``python -m penstock.bench.share.feeder``. It ends with its input."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import msgspec

from penstock.bench.measure.loop import failure, heard_lines, keep_output_for_answers, say
from penstock.bench.share.source import made
from penstock.errors import PenstockError
from penstock.feed.feeder.feeder import Feeder
from penstock.feed.launch.attach import attach
from penstock.feed.launch.process import serve


class Feeding(msgspec.Struct, frozen=True):
    """Orders for a feeder process.

    Attributes:
        trainers: Number of trainers that will read.
    """

    where: str
    feed: str
    window: str
    trainers: int


def main() -> None:
    keep_output_for_answers()
    heard = heard_lines()
    feeding = msgspec.json.decode(next(heard), type=Feeding)
    try:
        feeder = Feeder(made(feeding.where), feeding.feed, window=feeding.window)
    except Exception as error:
        say(failure(error))
        sys.exit(1)
    threading.Thread(target=_end, args=(feeder, heard), daemon=True).start()
    threading.Thread(target=_gather, args=(feeder, feeding), daemon=True).start()
    try:
        serve(feeder)
    except PenstockError:
        sys.exit(1)  # every trainer has been told


def _end(feeder: Feeder, heard: Iterator[bytes]) -> None:
    for _ in heard:
        pass
    feeder.close()


def _gather(feeder: Feeder, feeding: Feeding) -> None:
    """Hold the first block until every trainer reads: a late one would join in mid-cycle."""
    try:
        with attach(feeding.feed, 1, wait_s=60) as holder:
            next(iter(holder))
            say({"ready": True})
            while sum(trainer.state == "reading" for trainer in feeder.statistics().trainers) <= feeding.trainers:
                time.sleep(0.01)
    except PenstockError as error:
        say(failure(error))


if __name__ == "__main__":
    main()
