"""EL2N: how far off a model is at a sample, early in training."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.errors import BadSetting
from penstock.select.header import Direction
from penstock.select.kept import step
from penstock.select.methods.models import Count, Epochs, told, trained
from penstock.select.scorer import Progress, Scored
from penstock.select.task import Task, logits_of
from penstock.select.training import digest_of


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
        models = list(trained(task, task.make_model, self.models, self.epochs, seed, progress))
        lengths = [
            step(
                f"lengths {digest_of(model)}", lambda what=what, model=model: _lengths(task, model, what, progress)
            )
            for i, model in enumerate(models)
            for what in (f"lengths by model {i + 1} of {len(models)}",)
        ]
        return Scored(torch.stack(lengths).mean(0).numpy(), checkpoint=digest_of(models[-1]))


@torch.no_grad()
def _lengths(task: Task, model: nn.Module, what: str, progress: Progress) -> Tensor:
    lengths = torch.zeros(task.samples)
    for batch in told(task.batches(), what, task.samples, progress):
        logits, labels = logits_of(task.outputs(model, batch)), task.labels_of(batch)
        if logits.dim() != 2:
            raise BadSetting(f"el2n: outputs of shape {tuple(logits.shape)}: it needs logits, (n, classes)")
        if labels.shape != logits.shape[:1] or labels.is_floating_point():
            raise BadSetting(
                f"el2n: labels of shape {tuple(labels.shape)}, {labels.dtype}: it needs the number of a class for "
                "each sample, (n,)"
            )
        error = logits.softmax(1) - functional.one_hot(labels.long(), logits.shape[1])
        lengths[torch.from_numpy(batch.ids)] = error.norm(dim=1).float().cpu()
    return lengths
