"""Penstock's own, cheap one: last-layer gradients of a small proxy, against those of a target."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from penstock.errors import BadSetting
from penstock.select.header import Direction
from penstock.select.last_layer import sketched_gradients
from penstock.select.methods.models import Count, Epochs, one_trained, told
from penstock.select.scorer import Progress, Scored
from penstock.select.task import Batch, Task
from penstock.select.training import digest_of

_SMALLER = 10


class Sketch(msgspec.Struct, frozen=True):
    """The product of a sample's gradient of the last layer with the mean gradient of a target.

    One short training of a proxy with at most a tenth of the model's parameters, one forward pass. To first order,
    the product is what a step on the sample takes off the target's loss (Pruthi et al., TracIn, 2002.08484); the
    sketch of both factors is LoGra's (Choe et al., 2405.13954).

    Attributes:
        epochs: Epochs that the proxy is trained for.
        side: Length that each factor of a gradient is projected to if it is longer.
    """

    epochs: Epochs = 4
    side: Count = 128
    name = "sketch"
    version = "1"
    direction: ClassVar[Direction] = "high"

    def score(self, task: Task, seed: int, progress: Progress) -> Scored:
        """Score each sample for each target."""
        targets = task.targets
        if task.make_proxy is None:
            raise BadSetting("sketch: it needs a small model: Task(make_proxy=...)")
        small, large = (_parameters(make()) for make in (task.make_proxy, task.make_model))
        if small * _SMALLER > large:
            raise BadSetting(
                f"sketch: the proxy has {small:,} parameters, of the model's {large:,}: at most a {_SMALLER}th "
                f"makes it cheap. Let make_proxy make one with {large // _SMALLER:,} or fewer, or score by rds"
            )
        model = one_trained(task, task.make_proxy, self.epochs, seed, progress)
        wanted = torch.stack(
            [
                torch.cat(
                    [each for _, each in self._gradients(task, model, task.validation_batches(name), seed)]
                ).mean(0)
                for name in targets
            ]
        )
        values = np.empty((task.samples, len(targets)), np.float32)
        batches = told(task.batches(), "gradients of the proxy", task.samples, progress)
        for ids, gradients in self._gradients(task, model, batches, seed):
            values[ids] = (gradients @ wanted.T).float().cpu().numpy()
        return Scored(values, tuple(filter(None, targets)), digest_of(model))

    def _gradients(
        self, task: Task, model: nn.Module, batches: Iterator[Batch], seed: int
    ) -> Iterator[tuple[np.ndarray, Tensor]]:
        for batch in batches:
            losses = lambda batch=batch: task.losses(model, batch)  # noqa: E731
            yield batch.ids, sketched_gradients(model, losses, self.side, seed)


def _parameters(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())
