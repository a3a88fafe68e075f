"""A trainer in a process of its own. It writes what it received, an event a line, to a file.

Its order is JSON: where from (``source`` to share it, else it attaches), how
many epochs (or ``until`` a file is there at an epoch's end), how slowly, where
it hurts itself (``hurt``), where it pauses (``pause``), and how many of its
last batches it holds on to (``keep``), and which samples it selects,
epoch by epoch (``parts``). A ``device`` is what a fake GPU is made with.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import penstock
from penstock.feed.trainer.batch_builder import BatchBuilder
from sources import make, payload_of

order = json.loads(sys.argv[1])
log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def note(**event: Any) -> None:
    os.write(log, json.dumps(event).encode() + b"\n")


def hurt(place: str) -> None:
    """Send itself a signal at the n-th visit of a place."""
    wound = order["hurt"]
    if wound and wound["place"] == place:
        wound["nth"] -= 1
        if wound["nth"] == 0:
            note(hurt=place)
            os.kill(os.getpid(), signal.Signals[wound["signal"]])


def copy_in_halves(self: BatchBuilder, block: Any, picked: Any, rows: int, to: int) -> None:
    """The true copy, with a place in its middle at which to hurt."""
    half = rows // 2
    if isinstance(picked, slice):
        middle = picked.start + half
        parts = slice(picked.start, middle), slice(middle, picked.stop)
    else:
        parts = picked[:half], picked[half:]
    copy(self, block, parts[0], half, to)
    hurt("copy")
    copy(self, block, parts[1], rows - half, to + half)


copy = BatchBuilder.copy
BatchBuilder.copy = copy_in_halves  # type: ignore[method-assign]


kept: list[Any] = []


def keep(batch: Any) -> None:
    if order["keep"]:
        kept.append(batch)
        del kept[: -order["keep"]]


def right(batch: Any) -> bool:
    ids, payload = batch["id"], batch["payload"]
    if hasattr(payload, "numpy"):
        ids, payload = ids.numpy(), payload.numpy()
    return bool((payload == payload_of(ids, payload.shape[1])).all())


def connect() -> penstock.Loader:
    options = {"batch_size": order["batch_size"], **order["options"]}
    if "device" in options:
        from tests.fakes.gpu import FakeGpu

        options["device"] = FakeGpu(**options["device"])
    if order["source"]:
        return penstock.share(functools.partial(make, **order["source"]), order["name"], **options)
    return penstock.attach(order["name"], wait_s=30, **options)


def pause_at(batches: int) -> None:
    pause = order["pause"]
    if pause and pause["after"] == batches:
        note(paused=batches)
        while not Path(pause["until"]).exists():
            time.sleep(0.01)


def train(loader: penstock.Loader) -> None:
    if order["resume"]:
        loader.load_state_dict(order["resume"])
    taken = 0
    while order["epochs"] is None or loader.epoch < order["epochs"]:
        epoch = loader.epoch
        if order["parts"]:
            loader.select(order["parts"][epoch % len(order["parts"])])
        for batch in loader:
            good = right(batch)
            keep(batch)
            pause_at(taken)
            time.sleep(order["delay_s"])
            ids = [int(i) for i in batch["id"]]
            note(epoch=epoch, ids=ids, right=good and right(batch), feeder=loader.statistics().feeder_pid)
            if order["save"]:
                note(state=loader.state_dict())
            hurt("batch")
            taken += 1
            if taken == order["batches"]:
                return
        note(end=epoch)
        hurt("epoch end")
        if order["until"] and Path(order["until"]).exists():
            return


def main() -> None:
    try:
        note(connecting=os.getpid())
        with connect() as loader:
            note(joined=loader.statistics().feeder_pid)
            train(loader)
            note(done=loader.statistics().failovers)
    except (penstock.PenstockError, RuntimeError) as error:
        note(error=type(error).__name__, message=str(error), traceback=getattr(error, "traceback_text", ""))
    except KeyboardInterrupt:
        note(error="KeyboardInterrupt", message="", traceback="")
    if kept:
        note(kept=[[int(i) for i in batch["id"]] for batch in kept], kept_right=all(map(right, kept)))


if __name__ == "__main__":
    main()
