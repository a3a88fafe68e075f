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
from penstock.scoring.methods.models import trained
from penstock.scoring.scorer import Progress, Scored
from penstock.scoring.scores import Scores
from penstock.scoring.task import Batch, Task

Vectors = npt.NDArray[np.float32]


class Rds(msgspec.Struct, frozen=True):
    """How early a sample is taken if each of a target's samples takes the nearest in turn: cosines of embeddings.

    One forward pass. Embeddings are what the last linear layer is given; of a text, the mean over its positions,
    with weights that rise with the position. They are kept, and score other targets without another pass.

    Source: Ivison et al., Large-Scale Data Selection for Instruction Tuning (2503.01807).

    Attributes:
        epochs: Epochs that the model is trained for first; 0 for a model that ``make_model`` makes trained.
        centred: Whether the mean embedding of the data is subtracted first.
    """

    epochs: int = 1
    centred: bool = True
    name = "rds"
    version = "1"
    direction: ClassVar[Direction] = "high"

    def score(self, task: Task, seed: int, progress: Progress) -> Scored:
        """Score each sample for each target."""
        targets = task.targets
        (model, checkpoint), *_ = trained(task, task.make_model, 1, self.epochs, seed, progress)
        embeddings = _of_index(task.index, checkpoint.digest, task.samples) if task.index else None
        if embeddings is None:
            embeddings = embedded(task, model, task.batches(), task.samples)
        wanted = {name: embedded(task, model, task.validation_batches(name)) for name in targets}
        values = np.stack([nearest(embeddings, wanted[name], centred=self.centred) for name in targets], 1)
        return Scored(values, tuple(filter(None, targets)), checkpoint.digest, embeddings)


def _of_index(index: Scores, checkpoint: str, samples: int) -> Vectors:
    """Return the embeddings that scores hold.

    Raises:
        BadSetting: they hold none, or those of other samples or another model.
    """
    if index.embeddings is None or len(index) != samples:
        raise BadSetting(f"index: {index!r} has no embeddings of {samples:,} samples; those of rds have")
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
                    found.append(pooled(given()).float().cpu().numpy())
    joined = np.concatenate(found)
    if samples is None:
        return joined
    embeddings = np.empty((samples, joined.shape[1]), np.float32)
    embeddings[np.concatenate(ids)] = joined
    return embeddings


def pooled(hidden: Tensor) -> Tensor:
    """Return the mean over positions, if there are some, with weights 1, 2, 3, ..., shape ``(n, d)``."""
    if hidden.dim() == 2:
        return hidden
    weights = torch.arange(1.0, hidden.shape[1] + 1, device=hidden.device)
    return torch.einsum("nld,l->nd", hidden, weights / weights.sum())


def nearest(embeddings: Vectors, wanted: Vectors, *, centred: bool = True) -> npt.NDArray[np.float32]:
    """Return, for each sample, the round in which some target sample would take it: 0 the first, -1 the next.

    Args:
        embeddings: Of the samples, shape ``(n, d)``.
        wanted: Of the target's, shape ``(m, d)``.
        centred: Whether the samples' mean is subtracted from both.
    """
    mean = embeddings.mean(0) if centred else 0.0
    samples, targets = _unit(embeddings - mean), _unit(wanted - mean)
    best = np.full(len(samples), len(samples), np.int64)
    for target in targets:
        order = np.argsort(-(samples @ target), kind="stable")
        rounds = np.empty(len(samples), np.int64)
        rounds[order] = np.arange(len(samples))
        np.minimum(best, rounds, out=best)
    return -best.astype(np.float32)


def _unit(vectors: Vectors) -> Vectors:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
