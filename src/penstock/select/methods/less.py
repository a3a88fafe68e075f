"""LESS: samples whose gradients point where those of a target do."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, cast

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.basics.terminal import say
from penstock.errors import BadSetting
from penstock.select.gradients import RowGradients, SampleGradients
from penstock.select.header import Direction
from penstock.select.kept import step
from penstock.select.lora import adapted
from penstock.select.methods.models import Count, checkpoints, made
from penstock.select.projection import projected
from penstock.select.scorer import Progress, Scored
from penstock.select.task import Batch, Task
from penstock.select.training import Checkpoint, adam_direction, digest_of

_SAME = 0.02  # of numbers of 16 bits, too


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
    version = "2"
    direction: ClassVar[Direction] = "high"

    def score(self, task: Task, seed: int, progress: Progress) -> Scored:
        """Score each sample for each target."""
        targets = task.targets
        model = made(task, task.make_model, seed)
        if task.lora_rank:
            adapted(model, task.lora_rank)
        draws = np.random.default_rng(seed).permutation(task.samples)
        warm_up = draws[: max(1, round(self.warm_up * task.samples))]
        found = checkpoints(task, model, self.epochs, seed, warm_up, progress)
        gradients = _compared(task, found[0].into(model))

        def projections(batches: Iterator[Batch], of: Checkpoint | None) -> Iterator[tuple[np.ndarray, Tensor]]:
            """Yield ids and projected gradients; of Adam's steps, if a checkpoint's state is to count."""
            for batch in batches:
                rows = gradients.by_rows(lambda batch=batch: task.losses(model, batch), len(batch.ids))
                parts = (_step(of, each) if of and self.adam else each.gradients for each in rows)
                yield batch.ids, projected(parts, gradients.length, self.dimensions, seed)

        def scores_at(checkpoint: Checkpoint, what: str) -> Tensor:
            """Return what a checkpoint adds to the scores, shape ``(samples, targets)``."""
            checkpoint.into(model)
            sums = [
                sum(each.sum(0) for _, each in projections(task.validation_batches(name), None))
                for name in targets
            ]
            wanted = functional.normalize(torch.stack(cast("list[Tensor]", sums)), dim=1)
            scores = torch.zeros(task.samples, len(wanted), dtype=torch.float64)
            for ids, steps in projections(task.batches(), checkpoint):
                cosines = functional.normalize(steps, dim=1) @ wanted.T
                scores[torch.from_numpy(ids)] = checkpoint.learning_rate * cosines.double().cpu()
                progress(what, int(ids[-1]) + 1, task.samples)
            return scores

        scores = torch.zeros(task.samples, len(targets), dtype=torch.float64)
        for i, checkpoint in enumerate(found):
            what = f"gradients at checkpoint {i + 1} of {len(found)}"
            name = f"{what}, {digest_of(checkpoint.into(model))}"  # its file may hold another one by now
            scores += step(name, partial(scores_at, checkpoint, what))
        return Scored(scores.float().numpy(), tuple(filter(None, targets)), digest_of(found[-1].into(model)))


def _compared(task: Task, model: nn.Module) -> SampleGradients:
    """Return what takes gradients of single samples; say how much of the model, and whether batches matter."""
    target = next(iter(task.targets))
    batch = next(task.validation_batches(target))
    gradients = SampleGradients(model, lambda: task.losses(model, batch), len(batch.ids))
    say(f"less {gradients.says()}")
    few = next(replace(task, batch_size=-(-len(batch.ids) // 2)).validation_batches(target))
    with torch.no_grad():
        together, apart = task.losses(model, batch)[: len(few.ids)], task.losses(model, few)
    if not torch.allclose(together, apart, _SAME, _SAME * float(together.abs().mean())):
        say(
            "less: a sample's loss depends on the others of its batch, as by padding that counts, or is drawn "
            "anew each time: so do its gradients, and scores are others with another batch_size="
        )
    return gradients


def _step(checkpoint: Checkpoint, rows: RowGradients) -> Tensor:
    moments = checkpoint.moments.get(rows.parameter)
    if moments is None:
        raise BadSetting(
            f"less: the checkpoint has no Adam state of {rows.parameter}. Save {{'model': model.state_dict(), "
            "'optimizer': optimizer.state_dict()}, or take plain gradients: adam=False"
        )
    return adam_direction(rows.gradients, moments.of_rows(rows.rows))
