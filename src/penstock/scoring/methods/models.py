"""Models that score: from checkpoints of the user's, else trained for as long as a method asks."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec
import torch
from torch import nn

from penstock.contracts import Ids
from penstock.errors import BadSetting
from penstock.scoring.scorer import Progress
from penstock.scoring.task import Task
from penstock.scoring.training import Checkpoint, read_checkpoint, train

Count = Annotated[int, msgspec.Meta(ge=1)]
"""A setting that is a number of things, at least one."""
Epochs = Annotated[int, msgspec.Meta(ge=0)]
"""Epochs of a training; 0 for a model that is made trained."""


def one_trained(
    task: Task, make: Callable[[], nn.Module], epochs: int, seed: int, progress: Progress
) -> tuple[nn.Module, Checkpoint]:
    """Return the model of a method that compares by one: the checkpoint's, or one that is trained.

    Raises:
        BadSetting: there are several checkpoints.
    """
    if len(task.checkpoints) > 1:
        raise BadSetting(
            f"checkpoints: this method compares by one model, and {len(task.checkpoints)} are given; less and "
            "el2n take several"
        )
    return next(trained(task, make, 1, epochs, seed, progress))


def trained(
    task: Task, make: Callable[[], nn.Module], models: int, epochs: int, seed: int, progress: Progress
) -> Iterator[tuple[nn.Module, Checkpoint]]:
    """Yield models at the end of their training, in evaluation mode: of each checkpoint, or of so many seeds."""
    if task.checkpoints:
        for path in task.checkpoints:
            model = made(task, make, seed)
            checkpoint = read_checkpoint(path, model)
            yield checkpoint.into(model), checkpoint
        return
    for i in range(models):
        progress("train a model", i, models)
        model = made(task, make, seed + i)
        found = train(task, model, epochs=epochs, seed=seed + i) if epochs else [Checkpoint.of(model)]
        yield model.eval(), found[-1]


def checkpoints(task: Task, model: nn.Module, epochs: int, seed: int, ids: Ids | None) -> list[Checkpoint]:
    """Return the user's checkpoints, or one of each epoch of a training."""
    if task.checkpoints:
        return [read_checkpoint(path, model) for path in task.checkpoints]
    return train(task, model, epochs=epochs, seed=seed, ids=ids)


def made(task: Task, make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Make a model whose first parameters follow from the seed."""
    torch.manual_seed(seed)
    return make().to(task.device)
