"""LESS: samples whose gradients point where those of a target do."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from penstock.errors import BadSetting
from penstock.scoring.gradients import RowGradients, SampleGradients, layers_of
from penstock.scoring.header import Direction
from penstock.scoring.lora import adapted
from penstock.scoring.methods.models import Count, checkpoints, made
from penstock.scoring.projection import projected
from penstock.scoring.scorer import Progress, Scored
from penstock.scoring.task import Batch, Task
from penstock.scoring.training import Checkpoint, adam_direction


class Less(msgspec.Struct, frozen=True):
    """The cosine between a sample's Adam step and the mean gradient of a target, summed over checkpoints.

    Each checkpoint counts by its learning rate. Adapters are trained where the task has a ``lora_rank``.

    Source: Xia et al., LESS: Selecting Influential Data for Targeted Instruction Tuning (2402.04333).

    Attributes:
        warm_up: Part of the data that the model is trained on first.
        epochs: Epochs of that training, each of which gives a checkpoint.
        dimensions: Length that gradients are projected to.
        adam: Whether the state of Adam counts, which checkpoints must then hold.
    """

    warm_up: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.05
    epochs: Count = 4
    dimensions: Count = 8192
    adam: bool = True
    name = "less"
    version = "1"
    direction: ClassVar[Direction] = "high"

    def score(self, task: Task, seed: int, progress: Progress) -> Scored:
        """Score each sample for each target."""
        targets = task.targets
        model = made(task, task.make_model, seed)
        if task.lora_rank:
            adapted(model, task.lora_rank)
        draws = np.random.default_rng(seed).permutation(task.samples)
        found = checkpoints(task, model, self.epochs, seed, draws[: max(1, round(self.warm_up * task.samples))])
        scores = np.zeros((task.samples, len(targets)), np.float64)
        for i, checkpoint in enumerate(found):
            checkpoint.into(model)
            wanted = torch.stack([self._mean(task, model, name, seed) for name in targets])
            wanted = torch.nn.functional.normalize(wanted, dim=1)
            for ids, gradients in self._gradients(task, model, task.batches(), seed, checkpoint):
                cosines = torch.nn.functional.normalize(gradients, dim=1) @ wanted.T
                scores[ids] += checkpoint.learning_rate * cosines.double().cpu().numpy()
                progress(f"gradients at checkpoint {i + 1} of {len(found)}", int(ids[-1]) + 1, task.samples)
        return Scored(scores.astype(np.float32), tuple(filter(None, targets)), found[-1].digest)

    def _mean(self, task: Task, model: nn.Module, target: str, seed: int) -> Tensor:
        found = [each for _, each in self._gradients(task, model, task.validation_batches(target), seed, None)]
        return torch.cat(found).mean(0)

    def _gradients(
        self, task: Task, model: nn.Module, batches: Iterator[Batch], seed: int, checkpoint: Checkpoint | None
    ) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Yield ids and projected gradients; of Adam's steps, if a checkpoint's state is to count."""
        layers = layers_of(model)
        names = {id(parameter): name for name, parameter in model.named_parameters()}  # of tied weights, the first
        gradients = SampleGradients(layers)
        length = sum(layer.weight.numel() for layer in layers.values())
        for batch in batches:
            found = gradients.by_rows(lambda batch=batch: task.losses(model, batch))
            if checkpoint is None or not self.adam:
                parts = (each.gradients for each in found)
            else:
                parts = (_step(checkpoint, names[id(layers[each.layer].weight)], each) for each in found)
            yield batch.ids, projected(parts, length, self.dimensions, seed)


def _step(checkpoint: Checkpoint, parameter: str, rows: RowGradients) -> Tensor:
    moments = checkpoint.moments.get(parameter)
    if moments is None:
        raise BadSetting(
            f"less: the checkpoint has no Adam state of {parameter}. Save {{'model': model.state_dict(), "
            "'optimizer': optimizer.state_dict()}, or take plain gradients: adam=False"
        )
    return adam_direction(rows.gradients, moments.of_rows(rows.rows))
