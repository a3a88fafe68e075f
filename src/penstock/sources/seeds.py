"""The random numbers of a pass: seeds that no two passes share, and global generators lent to a sampler."""

# torch is there only where it was imported: nothing is known of its module.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np

from penstock.contracts import Cursor, Ids

_ORDER, _DATA, _ROWS, _TRANSFORM = range(4)


def order_seed(seed: int, cycle: int) -> int:
    """Return the seed of a cycle's order: in cycle 0 the feed's own, as without Penstock."""
    return seed if cycle == 0 else _mixed(seed, _ORDER, cycle)


def data_seed(seed: int, at: Cursor) -> int:
    """Return a seed for what a data set draws in a pass opened at ``at`` that is loaded whole."""
    return _mixed(seed, _DATA, *at)


def rows_seed(seed: int, at: Cursor, kept: Ids | None, *, transform: bool = False) -> int:
    """Return a seed for what is drawn for rows of the block at ``at``: those ``kept``, or all.

    Other rows have another seed, so no feeder can give one sample the draws of another.
    """
    which = b"" if kept is None else hashlib.blake2b(kept.tobytes(), digest_size=8).digest()
    return _mixed(seed, _TRANSFORM if transform else _ROWS, *at, len(which), int.from_bytes(which))


def seed_process(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch in this process."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        # Not torch.manual_seed, which takes a lock of torch.cuda: a worker that another thread
        # forks meanwhile would wait for it for ever.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)


class SamplersOwn:
    """The global generators of Python, NumPy and torch as a sampler sees them.

    While entered, the generators are in the sampler's states; on exit they get
    back their former ones, so what the data set draws does not move the sampler's order.
    """

    def __init__(self, seed: int) -> None:
        self._others = _states()
        random.seed(seed)
        np.random.seed(seed % 2**32)
        sys.modules["torch"].default_generator.manual_seed(seed)
        self.__exit__()

    def __enter__(self) -> None:
        self._others = _states()
        _restore(self._states)

    def __exit__(self, *_: object) -> None:
        self._states = _states()
        _restore(self._others)

    @property
    def torch_state(self) -> Any:
        """State of torch's generator, from which without Penstock the data set would draw next."""
        return self._states[0]


@contextmanager
def own_random_numbers(seed: int) -> Generator[None]:
    """Let what runs inside draw from global generators that begin at a seed; afterwards they are as before."""
    states = _states()
    seed_process(seed)
    try:
        yield
    finally:
        _restore(states)


def _states() -> tuple[Any, Any, Any]:
    torch = sys.modules.get("torch")
    return None if torch is None else torch.get_rng_state(), random.getstate(), np.random.get_state()


def _restore(states: tuple[Any, Any, Any]) -> None:
    if states[0] is not None:
        sys.modules["torch"].set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])


def _mixed(seed: int, *words: int) -> int:
    sequence = np.random.SeedSequence(seed % 2**64, spawn_key=words)
    return int(sequence.generate_state(1, np.uint64)[0])
