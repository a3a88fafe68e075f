"""The measured processes: a trainer (``python -m penstock.bench.share.child``), or the feeder (``… feeder``).

A feeder reads one line of JSON, and ends with its input; a trainer follows ``measure.loop``.
"""

# torch's own annotations leave a loader's settings unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from itertools import count
from typing import Any

import msgspec

from penstock.basics.tracebacks import users_traceback
from penstock.bench.measure.loop import Batches, failure, heard_lines, reply, reserve_output, serve
from penstock.contracts import Cursor, SourceBlock
from penstock.errors import PenstockError, SourceError
from penstock.feed.feeder.feeder import Feeder
from penstock.feed.launch.attach import attach
from penstock.feed.launch.function import call, function_at
from penstock.feed.launch.process import serve as serve_feed
from penstock.sources.adapt import adapt
from penstock.sources.seeds import seed_process
from penstock.tree import first_rows


class UsersLoader(msgspec.Struct, frozen=True):
    """Describes what a user's function makes."""

    description: str  # the source in words, as a feed's statistics have it
    workers: int | None  # workers of a ``DataLoader``; None for another source
    batch_size: int | None
    samples: int | None  # samples of one pass; None if unknown


def _made(where: str) -> Any:
    """Call the function at ``FILE.py:FUNCTION`` as ``penstock feed`` does."""
    seed_process(0)
    return call(function_at(where), where)


def described(where: str) -> UsersLoader:
    """Describe what the function makes."""
    thing = _made(where)
    source = adapt(thing, segments=1, seed=0)
    workers = thing.num_workers if _is_loader(thing) else None
    return UsersLoader(source.description, workers, source.batch_size, source.samples)


def alone(where: str, workers: int | None) -> Batches:
    """Give the batches that a training script has without Penstock, pass after pass.

    Args:
        workers: Workers of a ``DataLoader``, in place of its own number.
    """
    thing = _made(where)
    if _is_loader(thing):
        if workers is not None:
            thing.num_workers = workers  # it is read when a pass begins
        batches = _passes(where, lambda _: iter(thing))
        return Batches(batches, first_rows, None, batches.close)
    source = adapt(thing, segments=1, seed=0)
    blocks = _passes(where, lambda cycle: source.open(Cursor(cycle, 0)))
    return Batches(blocks, _block_rows, None, blocks.close)


def _block_rows(block: SourceBlock) -> int:
    return block.rows


def _is_loader(thing: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.utils.data.DataLoader)


def _passes(where: str, open_pass: Callable[[int], Iterator[Any]]) -> Generator[Any]:
    """Yield the batches of pass after pass."""
    try:
        for cycle in count():
            given = 0
            for batch in open_pass(cycle):
                given += 1
                yield batch
            if not given:
                raise SourceError(
                    f"what {where} returned gave no batch in pass {cycle + 1}: return something that gives "
                    "its batches each time it is iterated"
                )
    except PenstockError:
        raise
    except Exception as error:
        raise SourceError(
            f"what {where} returned raised {type(error).__name__}: {error}", users_traceback(error)
        ) from error


def open_source(order: dict[str, Any]) -> Batches:
    """Open a feed, or this process's own loader."""
    if "feed" not in order:
        return alone(order["where"], order["workers"])
    loader = attach(order["feed"])

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    return Batches(batches(), first_rows, None, loader.close)


def _describe(order: dict[str, Any]) -> dict[str, Any]:
    return {"loader": msgspec.to_builtins(described(order["where"]))}


def _feed() -> None:
    reserve_output()
    heard = heard_lines()
    order = msgspec.json.decode(next(heard))
    try:
        feeder = Feeder(_made(order["where"]), order["feed"], window=order["window"])
    except Exception as error:
        reply(failure(error))
        sys.exit(1)
    threading.Thread(target=_end, args=(feeder, heard), daemon=True).start()
    threading.Thread(target=_gather, args=(feeder, order["feed"], order["trainers"]), daemon=True).start()
    try:
        serve_feed(feeder)
    except PenstockError:
        sys.exit(1)  # every trainer has had the error


def _end(feeder: Feeder, heard: Iterator[bytes]) -> None:
    for _ in heard:
        pass
    feeder.close()


def _gather(feeder: Feeder, feed: str, trainers: int) -> None:
    """Hold the first block until every trainer reads: a late one would join in mid-cycle."""
    try:
        with attach(feed, 1, wait_s=60) as holder:
            next(iter(holder))
            reply({"ready": True})
            while sum(trainer.state == "reading" for trainer in feeder.statistics().trainers) <= trainers:
                time.sleep(0.01)
    except PenstockError as error:
        reply(failure(error))


if __name__ == "__main__":
    if sys.argv[1:] == ["feeder"]:
        _feed()
    else:
        serve(open_source, {"describe": _describe})
