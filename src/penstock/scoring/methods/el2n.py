"""EL2N: how far off a model is at a sample, early in training."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import msgspec
import numpy as np
import torch
from torch.nn import functional

from penstock.errors import BadSetting
from penstock.scoring.header import Direction
from penstock.scoring.methods.models import Count, Epochs, trained
from penstock.scoring.scorer import Progress, Scored
from penstock.scoring.task import Task


class El2n(msgspec.Struct, frozen=True):
    """The Euclidean length of ``softmax(logits) - label``, mean over several models early in their training.

    High scores are hard samples, and wrong labels too.

    Source: Paul et al., Deep Learning on a Data Diet (2107.07075), which takes 10 models after 10 of 200 epochs.

    Attributes:
        models: Number of models.
        epochs: Epochs that each is trained for.
        direction: "high" keeps the hard ones, as the paper does; "low" the easy ones.
    """

    models: Count = 3
    epochs: Epochs = 2
    direction: Direction = "high"
    name = "el2n"
    version = "1"

    def score(self, task: Task, seed: int, progress: Progress) -> Scored:
        """Score each sample."""
        lengths = np.zeros(task.samples, np.float32)
        models = list(trained(task, task.make_model, self.models, self.epochs, seed, progress))
        with torch.no_grad():
            for model, _ in models:
                for batch in task.batches():
                    logits, labels = task.outputs(model, batch), task.labels_of(batch)
                    if logits.dim() != 2:
                        raise BadSetting(
                            f"el2n: outputs of shape {tuple(logits.shape)}: it needs logits, (n, classes)"
                        )
                    if labels.shape != logits.shape[:1] or labels.is_floating_point():
                        raise BadSetting(
                            f"el2n: labels of shape {tuple(labels.shape)}, {labels.dtype}: it needs the number of "
                            "a class for each sample, (n,)"
                        )
                    error = logits.softmax(1) - functional.one_hot(labels.long(), logits.shape[1])
                    lengths[batch.ids] += error.norm(dim=1).float().cpu().numpy() / len(models)
        return Scored(lengths, checkpoint=models[-1][1].digest)
