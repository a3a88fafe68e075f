"""What is trained on what: the data, the model and its loss, as a user describes them for scoring."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from os import PathLike
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from penstock.basics.sizes import whole_number
from penstock.basics.terminal import listed
from penstock.contracts import Ids
from penstock.errors import BadSetting
from penstock.feed.trainer.loader import Loader
from penstock.fingerprint.objects import fingerprint_of_objects
from penstock.select.identity import DataIdentity, identity_of
from penstock.subsets.selection import Selection

_TRAINED_ON, _SCORED = 64, 256  # rows of a batch
_NO_CLASS = np.iinfo(np.int64).min
_NO_LABEL = -100


class Batch(NamedTuple):
    """Samples, their ids, shape ``(n,)``, and the name of what they are of."""

    ids: Ids
    content: Any
    of: str = "data"


def first(batch: Any) -> Any:
    """Return inputs: the first part of ``(inputs, labels)``, a mapping without its ``"labels"``, or an array."""
    if isinstance(batch, Mapping):
        return {name: part for name, part in cast("Mapping[str, Any]", batch).items() if name != "labels"}
    return batch if isinstance(batch, Tensor | np.ndarray) else batch[0]


def second(batch: Any) -> Any:
    """Return labels: the second part of ``(inputs, labels)``, or ``"labels"`` of a mapping."""
    if isinstance(batch, Tensor | np.ndarray):
        raise TypeError("its samples are single arrays")
    return batch["labels" if isinstance(batch, Mapping) else 1]


def cross_entropy(outputs: Any, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each sample, shape ``(n,)``: the mean over its positions that have a label.

    ``outputs`` are logits, shape ``(n, classes)``, or of a language model ``(n, positions, vocabulary)``; or what
    holds them as ``logits``, as models of Hugging Face's give. Of theirs for causal language models, labels are
    those of the inputs, so each position is compared with the next one's. Labels have shape ``(n,)`` or
    ``(n, positions)``; -100 means that a position has none.
    """
    if "CausalLM" in type(outputs).__name__:
        labels = functional.pad(labels[:, 1:], (0, 1), value=_NO_LABEL)
    logits = logits_of(outputs)
    kind = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if isinstance(kind, str) or labels.is_floating_point() or math.prod(kind[:-1]) != labels.numel():
        raise BadSetting(
            f"loss: outputs {kind} and labels {tuple(labels.shape)}, {labels.dtype}: cross-entropy needs logits, "
            "(n, classes) or (n, positions, classes), and a class for each; Task(loss=) takes another"
        )
    labels = labels.view(len(labels), -1).long()
    if (wrong := labels[(labels != _NO_LABEL) & ((labels < 0) | (labels >= kind[-1]))]).numel():
        raise BadSetting(f"labels: there is class {int(wrong[0])}, and the model has {kind[-1]}, from 0 on")
    losses = functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
    return losses.view(labels.shape).sum(1) / (labels != _NO_LABEL).sum(1).clamp(min=1)


def logits_of(outputs: Any) -> Any:
    """Return what a model gives, or its ``logits``."""
    return getattr(outputs, "logits", outputs)


def _part(name: str, take: Callable[[Any], Any], batch: Batch) -> Any:
    try:
        return take(batch.content)
    except (IndexError, KeyError, TypeError) as error:
        raise BadSetting(
            f"{name}: a batch of {type(batch.content).__name__} has none ({type(error).__name__}: {error}), and "
            f"this method needs them: Task({name}=function of a batch)"
        ) from None


@dataclass(frozen=True, kw_only=True)
class Task:
    """Data, a model, and its loss.

    Attributes:
        data: What is scored: a map-style data set, or a ``Loader``, so that a feed is scored, all of it.
        make_model: Makes the model that is to be trained, with its first parameters.
        validation: Samples of the task that the model is for, as a map-style data set, or several such sets by
            name: the targets. Needed by methods that compare with them.
        make_proxy: Makes a model with at most a tenth of the parameters, for the method ``sketch``.
        inputs: Returns what the model is called with, of a batch; a mapping's entries are its keyword arguments.
        labels: Returns the labels of a batch.
        loss: Returns the loss of each sample, shape ``(n,)``, of outputs and labels.
        mask: Returns which positions of a batch's texts count, and are not padding, shape ``(n, length)``, where a
            method needs to know; ``"attention_mask"`` of a batch that has one, unless given.
        embed: Returns an embedding of each sample, shape ``(n, d)``, of a model and a batch, as a frozen encoder
            in a feed's ``transform=`` has left it there; what the last linear layer is given unless set.
        checkpoints: Files of ``torch.save``: a ``state_dict`` of the model (for ``sketch``, of the proxy), or
            ``{"model": ..., "optimizer": ...}`` with that of an Adam optimiser; unless given, models are trained
            for as long as a method asks.
        learning_rate: Of AdamW, where a method trains.
        batch_size: Rows of a batch, in training and scoring; unless given, 64 and 256.
        workers: Processes that load the samples of a data set; 0 for this one.
        device: Where models compute.
        collate: Makes a batch of samples, as the ``DataLoader``'s ``collate_fn`` does.

    Examples:
        >>> import torch
        >>> data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.arange(64) % 2)
        >>> task = penstock.select.Task(data=data, make_model=lambda: torch.nn.Linear(8, 2))
        >>> task.samples
        64
    """

    data: Any
    make_model: Callable[[], nn.Module]
    validation: Any = None
    make_proxy: Callable[[], nn.Module] | None = None
    inputs: Callable[[Any], Any] = first
    labels: Callable[[Any], Tensor] = second
    loss: Callable[[Any, Tensor], Tensor] = cross_entropy
    mask: Callable[[Any], Tensor] | None = None
    embed: Callable[[nn.Module, Any], Tensor] | None = None
    checkpoints: Sequence[str | PathLike[str]] = ()
    learning_rate: float = 3e-3
    batch_size: int | None = None
    workers: int = 0
    device: str = "cpu"
    collate: Callable[[list[Any]], Any] | None = None

    def __post_init__(self) -> None:
        targets: Any = self.validation
        targets = [*targets.values()] if isinstance(targets, Mapping) else [targets]
        for name, data in (("data", self.data), *(("validation", each) for each in targets)):
            if isinstance(data, DataLoader):
                raise BadSetting(f"{name}: a DataLoader; give its data set, loader.dataset")
        for name in ("make_model", "make_proxy"):
            if isinstance(model := getattr(self, name), nn.Module):
                raise BadSetting(
                    f"{name}: a {type(model).__name__} itself; give a function that makes one, such as a lambda"
                )
        try:
            device = torch.device(self.device)
        except (RuntimeError, TypeError) as error:
            raise BadSetting(f"device={self.device!r}: {error}") from None
        if device.type == "cuda" and not torch.cuda.is_available():
            raise BadSetting(f"device={self.device!r}: torch {torch.__version__} finds no GPU here")
        whole_number("batch_size", 1 if self.batch_size is None else self.batch_size, 1)
        whole_number("workers", self.workers, 0)
        given: Any = self.checkpoints
        several = isinstance(given, Sequence) and not isinstance(given, str)
        others = [each for each in given if not isinstance(each, str | PathLike)] if several else [given]
        if others:
            raise BadSetting(
                f"checkpoints: a {type(others[0]).__name__}; give a list with paths of files that torch.save wrote"
            )

    @cached_property
    def samples(self) -> int:
        """Size of the data set."""
        if isinstance(self.data, Loader):
            self.data.select(None)  # else its length is that of the selection
        count = self.data.samples if isinstance(self.data, Loader) else len(self.data)
        if not count:
            raise BadSetting("data: a stream of unknown length, or nothing: scores need numbered samples")
        return count

    @property
    def rows_to_train_on(self) -> int:
        """Rows of a batch of training; a feed's ``Loader`` has its own."""
        return (self.data.batch_size if isinstance(self.data, Loader) else None) or self.batch_size or _TRAINED_ON

    @property
    def targets(self) -> dict[str, Dataset[Any]]:
        """Validation sets by name.

        Raises:
            BadSetting: there are none.
        """
        if self.validation is None:
            raise BadSetting(
                "validation: this method compares with samples of the task that the model is for, and the Task "
                "has none: Task(validation=dataset)"
            )
        given = self.validation if isinstance(self.validation, Mapping) else {"": self.validation}
        found = cast("dict[str, Dataset[Any]]", dict(given))
        if unnamed := [name for name in found if not isinstance(name, str)]:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadSetting(f"validation: the name {unnamed[0]!r} is a {type(unnamed[0]).__name__}, and no text")
        if empty := [name for name, data in found.items() if not len(cast("Any", data))]:
            raise BadSetting(f"validation{f' {empty[0]!r}' if empty[0] else ''}: no sample")
        return found

    def identity(self) -> DataIdentity:
        """Return what distinguishes the data from others; for a feed, its size."""
        return DataIdentity(self.samples) if isinstance(self.data, Loader) else identity_of(self.data)

    def fingerprint(self) -> str:
        """Return what distinguishes this task from others, apart from the data.

        Raises:
            Untravelled: something in it cannot go to another process.
        """
        names = [each.name for each in fields(self) if each.name not in ("data", "workers")]
        found = fingerprint_of_objects({name: getattr(self, name) for name in names})
        return f"{found.digest} {found.data}"

    def classes(self) -> Ids | None:
        """Return the class of each sample; None unless all were read, with at most half as many classes."""
        known = (self._classes != _NO_CLASS).all()
        return self._classes if known and 2 * len(np.unique(self._classes)) <= self.samples else None

    @cached_property
    def _classes(self) -> Ids:
        return np.full(self.samples, _NO_CLASS)

    def _note_classes(self, batch: Batch) -> None:
        with suppress(AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):  # has no labels
            labels = np.asarray(self.labels(batch.content))
            if labels.shape == batch.ids.shape and labels.dtype.kind in "biu":
                self._classes[batch.ids] = labels

    def batches(self, *, shuffle_seed: int | None = None, ids: Ids | None = None) -> Iterator[Batch]:
        """Yield the data once, or some of its samples: in order of their ids, or shuffled.

        A feed has its own order, and its own batch size.
        """
        if isinstance(self.data, Loader):
            found = self._of_feed(ids, exactly_once=shuffle_seed is None)
        else:
            chosen = np.arange(self.samples) if ids is None else ids
            if shuffle_seed is not None:
                chosen = np.random.default_rng(shuffle_seed).permutation(chosen)
            found = self._loaded(self.data, chosen, _SCORED if shuffle_seed is None else _TRAINED_ON)
        for batch in found:
            self._note_classes(batch)
            yield batch

    def validation_batches(self, target: str) -> Iterator[Batch]:
        """Yield the samples of a target once, in order."""
        data = self.targets[target]
        for batch in self._loaded(data, np.arange(len(cast("Any", data))), _SCORED):
            yield batch._replace(of=f"validation {target!r}" if target else "validation")

    def outputs(self, model: nn.Module, batch: Batch) -> Any:
        """Return what a model gives for a batch.

        Raises:
            BadSetting: the batch has no inputs.
        """
        inputs = self._here(_part("inputs", self.inputs, batch))
        return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)

    def labels_of(self, batch: Batch) -> Tensor:
        """Return the labels of a batch, on the device.

        Raises:
            BadSetting: there are none, or they are no numbers.
        """
        labels = _part("labels", self.labels, batch)
        try:
            numbers = torch.as_tensor(labels)
        except (RuntimeError, TypeError, ValueError):
            raise BadSetting(f"labels: a {type(labels).__name__} that is no numbers: Task(labels=...)") from None
        return self._here(numbers)

    def mask_of(self, batch: Batch) -> Tensor | None:
        """Return which positions of a batch count, shape ``(n, length)``; None without a mask."""
        content: Any = batch.content
        if self.mask is not None:
            return self._here(torch.as_tensor(self.mask(content)))
        if isinstance(content, Mapping) and "attention_mask" in content:
            return self._here(torch.as_tensor(cast("Mapping[str, Any]", content)["attention_mask"]))
        return None

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of each sample of a batch, shape ``(n,)``.

        Raises:
            BadSetting: the task's loss gives something else, or what is no number.
        """
        losses = self.loss(self.outputs(model, batch), self.labels_of(batch))
        if losses.shape != (len(batch.ids),):
            raise BadSetting(
                f"loss: shape {tuple(losses.shape)} for {len(batch.ids):,} samples: give one a sample "
                "(reduction='none')"
            )
        check_finite("loss", losses, batch)
        return losses

    def _of_feed(self, ids: Ids | None, *, exactly_once: bool) -> Iterator[Batch]:
        loader = cast("Loader", self.data)
        loader.select(None if ids is None else Selection(ids))
        given = np.zeros(self.samples, np.int64)
        for content in loader:
            if loader.ids is None:
                raise BadSetting(f"feed {loader.name!r} does not number its samples, so they cannot be scored")
            np.add.at(given, loader.ids, 1)
            yield Batch(loader.ids, content)
        wanted = given if ids is None else given[ids]
        if exactly_once and (wanted != 1).any():
            raise BadSetting(
                f"feed {loader.name!r}: of {len(wanted):,} samples, an epoch leaves out {(wanted == 0).sum():,} "
                f"and repeats {(wanted > 1).sum():,}, so they cannot be scored: attach without drop_last, to a "
                "loader that gives each sample once"
            )

    def _loaded(self, data: Any, ids: Ids, size: int) -> Iterator[Batch]:
        size = self.batch_size or size
        batches = [ids[i : i + size] for i in range(0, len(ids), size)]
        sampler = [each.tolist() for each in batches]
        loader = DataLoader(data, batch_sampler=sampler, collate_fn=self.collate, num_workers=self.workers)
        for each, content in zip(batches, loader, strict=True):
            yield Batch(each, content)

    def _here(self, content: Any) -> Any:
        if self.device == "cpu":
            return content
        if isinstance(content, Tensor):
            return content.to(self.device)
        if isinstance(content, Mapping):
            return {key: self._here(value) for key, value in cast("Mapping[Any, Any]", content).items()}
        if isinstance(content, tuple | list):
            return type(content)(self._here(each) for each in cast("list[Any]", content))
        return content


def check_finite(what: str, found: Tensor, batch: Batch) -> None:
    """Check what a model gave for each sample of a batch, shape ``(n, ...)``."""
    if torch.isfinite(found).all():
        return
    wrong, holding = _rows(found), {row for leaf in _tensors(batch.content) for row in _rows(leaf)}
    rows = sorted(holding) or wrong
    who = [f"id {batch.ids[row]:,}" for row in rows]
    why = f"{listed(who)} of {batch.of}" + " hold NaN or infinity" * bool(holding)
    if not holding and len(wrong) == len(found):
        why = f"no sample of {batch.of} holds NaN or infinity: the model has diverged"
    raise BadSetting(f"{what}: {len(wrong):,} of a batch's {len(found):,} are no finite numbers: {why}")


def _rows(values: Tensor) -> list[int]:
    """Return the rows that hold NaN or infinity."""
    return torch.nonzero(~torch.isfinite(values).reshape(len(values), -1).all(1))[:, 0].tolist()


def _tensors(content: Any) -> Iterator[Tensor]:
    if isinstance(content, Tensor):
        yield from [content] if content.dim() and content.is_floating_point() else []
    elif isinstance(content, Mapping | list | tuple):
        parts = content.values() if isinstance(content, Mapping) else content
        for part in cast("list[Any]", parts):
            yield from _tensors(part)
