"""RDS+: samples whose embeddings are nearest to those of a target's."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from penstock.errors import BadSetting
from penstock.scoring.gradients import last_linear
from penstock.scoring.header import Direction
from penstock.scoring.methods.models import Epochs, one_trained
from penstock.scoring.scorer import Progress, Scored
from penstock.scoring.scores import Scores
from penstock.scoring.task import Batch, Task

Vectors = npt.NDArray[np.float32]
_LESS_THAN_HALF = 0.49


class Rds(msgspec.Struct, frozen=True):
    """How early a sample is taken if each of a target's samples takes the nearest in turn: cosines of embeddings.

    One forward pass. Embeddings are what the last linear layer is given; of a text, the mean over its positions,
    with weights that rise with the position. They are kept, and score other targets without another pass.

    Source: Ivison et al., Large-Scale Data Selection for Instruction Tuning (2503.01807).

    Attributes:
        epochs: Epochs that the model is trained for first; 0 for a model that ``make_model`` makes trained.
        centred: Whether the mean embedding of the data is subtracted first.
    """

    epochs: Epochs = 1
    centred: bool = True
    name = "rds"
    version = "1"
    direction: ClassVar[Direction] = "high"

    def score(self, task: Task, seed: int, progress: Progress) -> Scored:
        """Score each sample for each target."""
        targets = task.targets
        model, checkpoint = one_trained(task, task.make_model, self.epochs, seed, progress)
        embeddings = _of_index(task.index, checkpoint.digest, task) if task.index else None
        if embeddings is None:
            embeddings = embedded(task, model, task.batches(), task.samples)
        wanted = {name: embedded(task, model, task.validation_batches(name)) for name in targets}
        values = np.stack([nearest(embeddings, wanted[name], centred=self.centred) for name in targets], 1)
        return Scored(values, tuple(filter(None, targets)), checkpoint.digest, embeddings)


def _of_index(index: Scores, checkpoint: str, task: Task) -> Vectors:
    """Return the embeddings that scores hold.

    Raises:
        BadSetting: they hold none, or those of other samples or another model.
    """
    if index.embeddings is None or len(index) != task.samples:
        raise BadSetting(f"index: {index!r} has no embeddings of {task.samples:,} samples; those of rds have")
    if differs := index.header.data.difference(task.identity()):
        raise BadSetting(f"index: its embeddings are of other data: {differs}")
    if index.header.checkpoint != checkpoint:
        raise BadSetting(
            f"index: its embeddings are by parameters {index.header.checkpoint}, and the model has {checkpoint}: "
            "give the same model, by checkpoints= or the seed, or leave the index out"
        )
    return index.embeddings


def embedded(task: Task, model: nn.Module, batches: Iterator[Batch], samples: int | None = None) -> Vectors:
    """Return embeddings, shape ``(n, d)``, in the order of the batches, or of so many samples by their ids."""
    ids, found = list[npt.NDArray[np.int64]](), list[Vectors]()
    with torch.no_grad():
        if task.embed is not None:
            for batch in batches:
                ids.append(batch.ids)
                found.append(task.embed(model, batch.content).float().cpu().numpy())
        else:
            with last_linear(model) as given:
                for batch in batches:
                    task.outputs(model, batch)
                    ids.append(batch.ids)
                    found.append(pooled(given(), task.mask_of(batch)).float().cpu().numpy())
    joined = np.concatenate(found)
    if not np.isfinite(joined).all():
        bad = int((~np.isfinite(joined).all(1)).sum())
        raise BadSetting(f"{bad:,} of {len(joined):,} embeddings are not finite. Has the model diverged?")
    if samples is None:
        return joined
    embeddings = np.empty((samples, joined.shape[1]), np.float32)
    embeddings[np.concatenate(ids)] = joined
    return embeddings


def pooled(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean over positions, if there are some, with weights 1, 2, 3, ..., shape ``(n, d)``.

    Args:
        hidden: Shape ``(n, d)``, or ``(n, length, d)``.
        mask: Which positions count, shape ``(n, length)``.

    Raises:
        BadSetting: there are positions, and nobody says which of them count.
    """
    if hidden.dim() == 2:
        return hidden
    if mask is None or mask.shape != hidden.shape[:2]:
        said = "nobody says" if mask is None else f"a mask of shape {tuple(mask.shape)} says"
        raise BadSetting(
            f"embeddings of shape {tuple(hidden.shape)}: {said} which positions are text, and which padding: "
            "Task(mask=function of a batch), ones if there is no padding, or embed="
        )
    weights = mask.to(hidden).cumsum(1) * mask.to(hidden)
    return torch.einsum("nld,nl->nd", hidden, weights / weights.sum(1, keepdim=True).clamp(min=1))


def nearest(embeddings: Vectors, wanted: Vectors, *, centred: bool = True) -> npt.NDArray[np.float32]:
    """Return, for each sample, the round in which some target sample would take it: from 0 on, downwards.

    Of those of one round, the nearer ones come first: less than 1 is added to a score by its cosine.

    Args:
        embeddings: Of the samples, shape ``(n, d)``.
        wanted: Of the target's, shape ``(m, d)``.
        centred: Whether the samples' mean is subtracted from both.
    """
    mean = embeddings.mean(0) if centred else 0.0
    samples, targets = _unit(embeddings - mean), _unit(wanted - mean)
    best = np.full(len(samples), -np.inf)
    for target in targets:
        cosines = samples @ target
        rounds = np.empty(len(samples))
        rounds[np.argsort(-cosines, kind="stable")] = np.arange(len(samples))
        np.maximum(best, (cosines.clip(-1, 1) + 1) * _LESS_THAN_HALF - rounds, out=best)
    return best.astype(np.float32)


def _unit(vectors: Vectors) -> Vectors:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
