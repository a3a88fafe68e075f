"""Methods by gradients, or the error that leads them: LESS, a sketch of the last layer, EL2N."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
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
from penstock.select.gradients import RowGradients, SampleGradients, projected, sketched_gradients
from penstock.select.identity import Direction
from penstock.select.methods import Count, Epochs, Progress, Scored, checkpoints, made, one_trained, shown, trained
from penstock.select.steps import step
from penstock.select.task import Batch, Task, logits_of
from penstock.select.training import Checkpoint, adam_direction, digest_of


class El2n(msgspec.Struct, frozen=True):
    """The Euclidean length of ``softmax(logits) - label``, mean over several models early in their training.

    High scores are hard samples, and wrong labels too.

    Source: Paul et al., Deep Learning on a Data Diet (2107.07075), which takes 10 models after 10 of 200 epochs.
    """

    models: Count = 3  # number of models
    epochs: Epochs = 2  # epochs that each is trained for
    direction: Direction = "high"  # "high" prefers the hard ones, as the paper does; "low" the easy ones
    name = "el2n"
    version = "1"

    def score(self, task: Task, seed: int, progress: Progress) -> Scored:
        """Score each sample."""
        models = list(trained(task, task.make_model, self.models, self.epochs, seed, progress))
        lengths = list[Tensor]()
        for i, model in enumerate(models):
            compute = partial(_lengths, task, model, f"lengths by model {i + 1} of {len(models)}", progress)
            lengths.append(step(f"lengths {digest_of(model)}", compute))
        return Scored(torch.stack(lengths).mean(0).numpy(), checkpoint=digest_of(models[-1]))


@torch.no_grad()
def _lengths(task: Task, model: nn.Module, what: str, progress: Progress) -> Tensor:
    lengths = torch.zeros(task.samples)
    for batch in shown(task.batches(), what, task.samples, progress):
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


_SAME = 0.02  # of numbers of 16 bits, too


class Less(msgspec.Struct, frozen=True):
    """The cosine between a sample's Adam step and the mean gradient of a target, summed over checkpoints.

    Each checkpoint counts by its learning rate, and each parameter in its steps by that of its group.

    Source: Xia et al., LESS: Selecting Influential Data for Targeted Instruction Tuning (2402.04333).
    """

    warm_up: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.05
    """Part of the data that the model is trained on first."""
    epochs: Count = 4  # epochs of that training; each gives a checkpoint
    dimensions: Count = 8192  # length that gradients are projected to
    adam: bool = True  # whether the state of Adam counts, which checkpoints must then hold
    name = "less"
    version = "2"
    direction: ClassVar[Direction] = "high"

    def score(self, task: Task, seed: int, progress: Progress) -> Scored:
        """Score each sample for each target."""
        targets = task.targets
        model = made(task, task.make_model, seed)
        draws = np.random.default_rng(seed).permutation(task.samples)
        warm_up = draws[: max(1, round(self.warm_up * task.samples))]
        found = checkpoints(task, model, self.epochs, seed, warm_up, progress)
        gradients = _compared(task, found[0].into(model))

        def projections(batches: Iterator[Batch], of: Checkpoint | None) -> Iterator[tuple[np.ndarray, Tensor]]:
            """Yield ids and projected gradients; of a checkpoint, the steps by its optimiser."""
            for batch in batches:
                rows = gradients.by_rows(lambda batch=batch: task.losses(model, batch), len(batch.ids))
                parts = (_step(of, each, adam=self.adam) if of else each.gradients for each in rows)
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
    """Return gradients of single samples; print how much of the model they cover, and whether batches matter."""
    target = next(iter(task.targets))
    batch = next(task.validation_batches(target))
    gradients = SampleGradients(model, lambda: task.losses(model, batch), len(batch.ids))
    say(f"less {gradients.summary()}")
    few = next(replace(task, batch_size=-(-len(batch.ids) // 2)).validation_batches(target))
    with torch.no_grad():
        together, apart = task.losses(model, batch)[: len(few.ids)], task.losses(model, few)
    if not torch.allclose(together, apart, _SAME, _SAME * float(together.abs().mean())):
        say(
            "less: a sample's loss depends on the others of its batch, as by padding that counts, or is drawn "
            "anew each time: so do its gradients, and scores are others with another batch_size="
        )
    return gradients


def _step(checkpoint: Checkpoint, rows: RowGradients, *, adam: bool) -> Tensor:
    relative = checkpoint.relative.get(rows.parameter, 1.0)
    if not adam:
        return relative * rows.gradients
    moments = checkpoint.moments.get(rows.parameter)
    if moments is None:
        raise BadSetting(
            f"less: the checkpoint has no Adam state of {rows.parameter}. Save {{'model': model.state_dict(), "
            "'optimizer': optimizer.state_dict()}, or take plain gradients: adam=False"
        )
    return relative * adam_direction(rows.gradients, moments.of_rows(rows.rows))


_SMALLER = 10


class Sketch(msgspec.Struct, frozen=True):
    """The product of a sample's gradient of the last layer with the mean gradient of a target.

    One short training of a proxy with at most a tenth of the model's parameters, one forward pass. To first order,
    the product is what a step on the sample takes off the target's loss (Pruthi et al., TracIn, 2002.08484); the
    sketch of both factors is LoGra's (Choe et al., 2405.13954).
    """

    epochs: Epochs = 4  # epochs that the proxy is trained for
    side: Count = 128  # length that each factor of a gradient is projected to if it is longer
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
        batches = shown(task.batches(), "gradients of the proxy", task.samples, progress)
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
