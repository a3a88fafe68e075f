"""The user's source in a measured process: its description, and its batches without a feed."""

# torch's own annotations leave a loader's settings unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from itertools import count
from typing import Any

import msgspec

from penstock.basics.tracebacks import users_traceback
from penstock.bench.measure.loop import Batches
from penstock.contracts import Cursor, SourceBlock
from penstock.errors import PenstockError, SourceError
from penstock.feed.launch.function import call, function_at
from penstock.sources.adapt import adapt
from penstock.sources.seeds import seed_process
from penstock.tree import first_rows


class Loader(msgspec.Struct, frozen=True):
    """Describes what a user's function makes.

    Attributes:
        description: The source in words, as a feed's statistics have it.
        workers: Workers of a ``DataLoader``; None for another source.
        samples: Samples of one pass; None if unknown.
    """

    description: str
    workers: int | None
    batch_size: int | None
    samples: int | None


def made(where: str) -> Any:
    """Call the function at ``FILE.py:FUNCTION`` as ``penstock feed`` does."""
    seed_process(0)
    return call(function_at(where), where)


def described(where: str) -> Loader:
    """Describe what the function makes.

    Raises:
        BadSetting: it cannot be fed.
    """
    thing = made(where)
    source = adapt(thing, segments=1, seed=0)
    workers = thing.num_workers if _is_loader(thing) else None
    return Loader(source.description, workers, source.batch_size, source.samples)


def alone(where: str, workers: int | None) -> Batches:
    """Give the batches that a training script has without Penstock, pass after pass.

    Args:
        workers: Workers of a ``DataLoader``, in place of its own number.
    """
    thing = made(where)
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
    """Yield the batches of pass after pass.

    Raises:
        SourceError: the user's code raised, or a pass gave nothing.
    """
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
