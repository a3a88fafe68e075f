"""The interface of a method that scores samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from penstock.select.header import Direction
from penstock.select.task import Task

Progress = Callable[[str, int, int], None]
"""Told what is done, how many steps of it, and of how many."""


class Scored(NamedTuple):
    """What a method found.

    Attributes:
        values: A score for each sample in order of ids, shape ``(samples,)`` or ``(samples, targets)``.
        targets: Names of the targets; empty for one score a sample.
        checkpoint: Digest of the parameters that scored; empty if none did.
        embeddings: An embedding of each sample, shape ``(samples, d)``, if the method computes some.

    Examples:
        >>> penstock.select.Scored(np.zeros(10, np.float32), checkpoint="").values.shape
        (10,)
    """

    values: npt.NDArray[np.float32]
    targets: tuple[str, ...] = ()
    checkpoint: str = ""
    embeddings: npt.NDArray[np.float32] | None = None


@runtime_checkable
class Scorer(Protocol):
    """A method: scores all samples of a task; ``penstock.testing.scorer`` tests one.

    Attributes:
        name: Its name.
        version: Changes whenever its scores do.
        direction: Which scores are worth more.

    Examples:
        >>> class ByNumber:
        ...     name, version, direction = "by-number", "1", "high"
        ...
        ...     def score(self, task, seed, progress):
        ...         return penstock.select.Scored(np.arange(len(task.dataset), dtype=np.float32))
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def direction(self) -> Direction: ...

    def score(self, task: Task, seed: int, progress: Progress) -> Scored:
        """Score each sample of ``task.data``; one task and one seed give one result.

        Raises:
            BadSetting: the task lacks what the method needs.
        """
        ...
