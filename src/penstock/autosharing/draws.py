"""What a DataLoader draws in the trainer while it is iterated, drawn although nothing is loaded there."""

# torch's own annotations leave a loader's samples and settings unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch

from penstock.sources.torch.sampling import draw


class Draws:
    """Moves a script's sampler and random numbers as iterating its loader would.

    The model's random stream stays the script's, as does the number of batches: they end when the sampler does. Of
    the indices that torch takes ahead for workers, only those of one batch are: a sampler that draws at each step
    draws later here.

    Args:
        loader: The script's loader, whose iterator was just asked for.
        of_stream: Whether its sampler never ends, as over an ``IterableDataset``.
        workers_live_on: Whether its workers have been seeded already, and persist.
    """

    def __init__(self, loader: Any, *, of_stream: bool, workers_live_on: bool = False) -> None:
        self._generator: torch.Generator = loader.generator or torch.default_generator
        self._before = self._states()
        self._indices: Iterator[Any] = iter(loader._index_sampler)
        if not workers_live_on:
            draw(self._generator)  # the seed of its workers
        self._of_stream = of_stream
        self._first: list[Any] = []
        if loader.num_workers and not of_stream:  # workers are given their first indices at once
            self._first = list(islice(self._indices, 1))

    def next(self) -> None:
        """Draw what the next batch takes.

        Raises:
            StopIteration: the sampler has ended.
        """
        if self._of_stream:
            return
        if self._first:
            self._first.pop()
        else:
            next(self._indices)

    def made_from_before(self, make: Callable[[], Any]) -> Any:
        """Make the loader's own iterator after all; it draws what has been drawn here."""
        now = self._states()
        self._set(self._before)
        try:
            return make()
        finally:
            self._set(now)

    def _states(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.default_generator.get_state(), self._generator.get_state()

    def _set(self, states: tuple[torch.Tensor, torch.Tensor]) -> None:
        torch.default_generator.set_state(states[0])
        self._generator.set_state(states[1])
