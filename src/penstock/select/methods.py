"""The interface of a method that scores samples, and the models by which it does."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple, Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from penstock.contracts import Ids
from penstock.errors import BadSetting
from penstock.select.identity import Direction
from penstock.select.steps import step
from penstock.select.task import Batch, Task
from penstock.select.training import Checkpoint, digest_of, read_checkpoint, train

Progress = Callable[[str, int, int], None]
"""Called with what is being done, the number of steps done, and of all steps."""


class Scored(NamedTuple):
    """What a method found.

    Attributes:
        values: A score for each sample in order of ids, shape ``(samples,)`` or ``(samples, targets)``.
        targets: Names of the targets; empty for one score a sample.
        checkpoint: Digest of the parameters that scored; empty if none did.

    Examples:
        >>> penstock.select.Scored(np.zeros(10, np.float32), checkpoint="").values.shape
        (10,)
    """

    values: npt.NDArray[np.float32]
    targets: tuple[str, ...] = ()
    checkpoint: str = ""


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


Count = Annotated[int, msgspec.Meta(ge=1)]
"""A setting that is a number of things, at least one."""
Epochs = Annotated[int, msgspec.Meta(ge=0)]
"""Epochs of a training; 0 for a model that is made trained."""


def one_trained(
    task: Task, make: Callable[[], nn.Module], epochs: int, seed: int, progress: Progress
) -> nn.Module:
    """Return the model of a method that compares by one: the checkpoint's, or one that is trained."""
    if len(task.checkpoints) > 1:
        raise BadSetting(
            f"checkpoints: this method compares by one model, and {len(task.checkpoints)} are given; less and "
            "el2n take several"
        )
    return next(trained(task, make, 1, epochs, seed, progress))


def trained(
    task: Task, make: Callable[[], nn.Module], models: int, epochs: int, seed: int, progress: Progress
) -> Iterator[nn.Module]:
    """Yield models at the end of their training, in evaluation mode: of checkpoints, or ``models`` new ones."""
    if task.checkpoints:
        for path in task.checkpoints:
            model = made(task, make, seed)
            yield read_checkpoint(path, model).into(model)
        return
    for i in range(models):
        what = f"train model {i + 1} of {models}" if models > 1 else "train a model"
        model = made(task, make, seed + i)
        found = _epochs(task, model, epochs, seed + i, None, progress, what) if epochs else []
        yield found[-1].into(model) if found else model.eval()


def checkpoints(
    task: Task, model: nn.Module, epochs: int, seed: int, ids: Ids | None, progress: Progress
) -> list[Checkpoint]:
    """Return the user's checkpoints, or one of each epoch of a training."""
    if task.checkpoints:
        return [read_checkpoint(path, model) for path in task.checkpoints]
    return _epochs(task, model, epochs, seed, ids, progress, "train a model")


def _epochs(
    task: Task, model: nn.Module, epochs: int, seed: int, ids: Ids | None, progress: Progress, what: str
) -> list[Checkpoint]:
    """Return a checkpoint of each epoch of a training; the step is kept, named by the model's first parameters."""
    total, trained = epochs * (task.samples if ids is None else len(ids)), 0

    def report(batch: Batch, _: Tensor) -> None:
        nonlocal trained
        trained += len(batch.ids)
        progress(what, trained, total)

    progress(what, 0, total)
    return step(
        f"model {digest_of(model)}",
        lambda: train(task, model, epochs=epochs, seed=seed, ids=ids, report=report),
    )


def shown(batches: Iterator[Batch], what: str, samples: int, progress: Progress) -> Iterator[Batch]:
    """Yield batches, and report to ``progress`` how many samples have been used."""
    used = 0
    for batch in batches:
        yield batch
        used += len(batch.ids)
        progress(what, used, samples)


def made(task: Task, make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Make a model whose first parameters follow from the seed."""
    torch.manual_seed(seed)
    return make().to(task.device)
