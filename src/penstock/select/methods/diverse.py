"""Diversity: the order in which samples are taken such that each differs most from those before it."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
import numpy as np

from penstock.select.choose import k_center
from penstock.select.header import Direction
from penstock.select.methods.models import Epochs, one_trained
from penstock.select.methods.rds import of_all
from penstock.select.scorer import Progress, Scored
from penstock.select.task import Task
from penstock.select.training import digest_of
from penstock.subsets.policy import count_of


class Diverse(msgspec.Struct, frozen=True):
    """The place of a sample in the greedy k-center order of embeddings: the top is without near-duplicates.

    Source: Sener & Savarese, Active Learning for Convolutional Neural Networks (1708.00489).

    Attributes:
        epochs: Epochs that the model is trained for first; 0 if ``embed`` or ``make_model`` needs no training.
        fraction: Part of the samples that is put in order, which takes long; the others come behind, first those
            that are far from all of it.
    """

    epochs: Epochs = 1
    fraction: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
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
        return Scored(values, checkpoint=digest_of(model), embeddings=vectors)
