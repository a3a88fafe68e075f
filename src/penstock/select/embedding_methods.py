"""Methods by embeddings: RDS+ (near to a target) and diversity (far from each other)."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Annotated, ClassVar

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from penstock.errors import BadSetting
from penstock.select.choices import k_center
from penstock.select.gradients import last_linear
from penstock.select.identity import Direction
from penstock.select.methods import Epochs, Progress, Scored, one_trained, shown
from penstock.select.steps import step
from penstock.select.task import Batch, Task, check_finite
from penstock.select.training import digest_of
from penstock.subsets.policy import count_of

Vectors = npt.NDArray[np.float32]
_LESS_THAN_HALF = 0.49
_DIGITS = 5
_AHEAD = 2  # times a target sample's part: what is ordered at once, since others take some of it first


class Rds(msgspec.Struct, frozen=True):
    """How early a sample is taken if the target's samples take the nearest one that is left, in turn.

    Near is by the cosine of embeddings, from one forward pass: what the last linear layer is given; of a text, the
    mean over its positions, with weights that rise with the position.

    Source: Ivison et al., Large-Scale Data Selection for Instruction Tuning (2503.01807).
    """

    epochs: Epochs = 1
    """Epochs that the model is trained for first; 0 for a model that ``make_model`` makes trained."""
    centred: bool = True  # whether the mean embedding of the data is subtracted first
    name = "rds"
    version = "2"
    direction: ClassVar[Direction] = "high"

    def score(self, task: Task, seed: int, progress: Progress) -> Scored:
        """Score each sample for each target."""
        targets = task.targets
        model = one_trained(task, task.make_model, self.epochs, seed, progress)
        embeddings = of_all(task, model, progress)
        wanted = {name: embedded(task, model, task.validation_batches(name)) for name in targets}
        values = np.stack([nearest(embeddings, wanted[name], centred=self.centred) for name in targets], 1)
        return Scored(values, tuple(filter(None, targets)), digest_of(model))


def of_all(task: Task, model: nn.Module, progress: Progress) -> Vectors:
    """Return the embedding of each sample of the data, shape ``(n, d)``; the step is kept."""

    def compute() -> Tensor:
        batches = shown(task.batches(), "embeddings", task.samples, progress)
        return torch.from_numpy(embedded(task, model, batches))

    return step(f"embeddings {digest_of(model)}", compute).numpy()


def embedded(task: Task, model: nn.Module, batches: Iterator[Batch]) -> Vectors:
    """Return embeddings, shape ``(n, d)``, in the order of the ids; each comes once."""
    ids, found = list[npt.NDArray[np.int64]](), list[Vectors]()
    embed = task.embed
    with torch.no_grad(), nullcontext() if embed else last_linear(model) as given:
        for batch in batches:
            if embed:
                hidden = embed(model, batch.content)
            else:
                assert given
                task.outputs(model, batch)
                hidden = pooled(given().given, task.mask_of(batch))
            check_finite("embeddings", hidden, batch)
            ids.append(batch.ids)
            found.append(hidden.float().cpu().numpy())
    return np.concatenate(found)[np.argsort(np.concatenate(ids))]


def pooled(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean over positions, if there are some, with weights 1, 2, 3, ..., shape ``(n, d)``.

    ``hidden`` has shape ``(n, d)`` or ``(n, length, d)``; ``mask``, shape ``(n, length)``, says which count.
    """
    if hidden.dim() == 2:
        return hidden
    if mask is None or mask.shape != hidden.shape[:2]:
        masks = "no mask" if mask is None else f"a mask of shape {tuple(mask.shape)}"
        raise BadSetting(
            f"embeddings of shape {tuple(hidden.shape)}, and {masks}: which positions are text, and not padding? "
            "Task(mask=function of a batch), ones if there is no padding, or embed="
        )
    weights = mask.to(hidden).cumsum(1) * mask.to(hidden)
    return torch.einsum("nld,nl->nd", hidden, weights / weights.sum(1, keepdim=True).clamp(min=1))


def nearest(embeddings: Vectors, wanted: Vectors, *, centred: bool = True) -> npt.NDArray[np.float32]:
    """Return, for each sample, minus the round in which one of the target's samples takes it.

    In a round each target sample, in order, takes the nearest sample that is left; so no sample is taken twice.
    Within a round, nearer ones score higher, by less than 1. Cosines are compared to 5 digits, and of equal ones
    the lower id is taken: the last bits depend on the processor. Shapes are ``(n, d)`` of the samples, and
    ``(m, d)`` of the target's. If ``centred``, the samples' mean is subtracted from both.
    """
    mean = embeddings.mean(0) if centred else 0.0
    samples, targets = _unit(embeddings - mean), _unit(wanted - mean)
    found = np.full(len(samples), np.nan, np.float32)
    at_once = min(len(samples), _AHEAD * -(-len(samples) // len(targets)))
    queues = [list[tuple[int, float]]() for _ in targets]
    for turn in range(len(samples)):
        queue = queues[turn % len(targets)]
        while True:
            if not queue:
                queue += reversed(_nearest_left(samples, targets[turn % len(targets)], np.isnan(found), at_once))
            row, cosine = queue.pop()
            if np.isnan(found[row]):
                break
        found[row] = (cosine + 1) * _LESS_THAN_HALF - turn // len(targets)
    return found


def _nearest_left(
    samples: Vectors, target: npt.NDArray[np.float32], left: npt.NDArray[np.bool_], count: int
) -> list[tuple[int, float]]:
    """Return this number of the rows that are left, the nearest first, with their cosines."""
    rows = np.flatnonzero(left)
    cosines = (samples @ target)[rows].clip(-1, 1).round(_DIGITS)
    order = np.argsort(-cosines, kind="stable")[:count]
    return list(zip(rows[order].tolist(), cosines[order].tolist(), strict=True))


def _unit(vectors: Vectors) -> Vectors:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


class Diverse(msgspec.Struct, frozen=True):
    """The place of a sample in the greedy k-center order of embeddings: the top is without near-duplicates.

    Source: Sener & Savarese, Active Learning for Convolutional Neural Networks (1708.00489).
    """

    epochs: Epochs = 1
    """Epochs that the model is trained for first; 0 if ``embed`` or ``make_model`` needs no training."""
    fraction: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    """Part of the samples that is put in order, which takes long; the others come behind, first those that are far
    from all of it."""
    name = "diverse"
    version = "2"
    direction: ClassVar[Direction] = "high"

    def score(self, task: Task, seed: int, progress: Progress) -> Scored:
        """Score each sample."""
        model = one_trained(task, task.make_model, self.epochs, seed, progress)
        vectors = of_all(task, model, progress)
        rows, distances = k_center(vectors, count_of(self.fraction, len(vectors)), seed, progress)
        order = np.concatenate([rows, np.argsort(-distances, kind="stable")[: len(vectors) - len(rows)]])
        values = np.empty(len(vectors), np.float32)
        values[order] = -np.arange(len(order))
        return Scored(values, checkpoint=digest_of(model))
