"""Trains a model for scoring, and makes checkpoints of it with the state of its Adam optimiser."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from penstock.basics.terminal import say
from penstock.contracts import Ids
from penstock.errors import BadSetting
from penstock.select.task import Batch, Task

_BETAS, _EPS = (0.9, 0.999), 1e-8
_MODELS = "model", "model_state_dict", "state_dict"
_OPTIMIZERS = "optimizer", "optimizer_state_dict", "optimizer_states"
_WEIGHTS, _OPTIMIZER = ("adapter_model.safetensors", "model.safetensors"), "optimizer.pt"


class Moments(NamedTuple):
    """Adam's running means of a parameter's gradient and its square, the steps so far, and Adam's settings."""

    mean: Tensor
    square: Tensor
    step: int
    betas: tuple[float, float] = _BETAS
    eps: float = _EPS

    def of_rows(self, rows: slice) -> Moments:
        """Return the moments of some rows of the parameter."""
        return self._replace(mean=self.mean[rows], square=self.square[rows])


class Checkpoint(NamedTuple):
    """A model at one moment of its training."""

    state: dict[str, Tensor]  # its ``state_dict``, which may leave out what is frozen
    moments: dict[str, Moments]  # Adam's moments by the name of the parameter; empty if they are not known
    learning_rate: float
    """The learning rate at that moment, or its mean over the epoch; 1 if it is not known. Where groups of
    parameters have their own, the mean of all numbers."""
    relative: Mapping[str, float] = {}
    """The learning rate of a parameter by its name, as a multiple of that; 1 unless it is there."""

    def into(self, model: nn.Module) -> nn.Module:
        """Return a model with these parameters, in evaluation mode."""
        frozen = {name: each.detach() for name, each in model.named_parameters(remove_duplicate=False)}
        for name in _trained(model):
            del frozen[name]
        try:
            model.load_state_dict(frozen | self.state)
        except (AttributeError, RuntimeError, TypeError) as error:
            lines = [line.strip() for line in str(error).splitlines()]
            lines = lines[1:] or lines
            more = f"; and {len(lines) - 3} more" if len(lines) > 3 else ""
            raise BadSetting(
                f"a checkpoint does not fit the model {type(model).__name__}: {' '.join(lines[:3])}{more}"
            ) from None
        return model.eval()


def digest_of(model: nn.Module) -> str:
    """Return a digest of a model's parameters."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode() + np.asarray(value.detach().cpu().float()).tobytes())
    return digest.hexdigest()[:16]


def train(
    task: Task,
    model: nn.Module,  # what is trained, in place
    *,
    epochs: int,  # number of epochs
    seed: int,  # random seed of the order
    ids: Ids | None = None,  # the samples to train on; all unless given
    report: Callable[[Batch, Tensor], None] | None = None,  # called with each batch and its losses, shape ``(n,)``
) -> list[Checkpoint]:
    """Train a model by AdamW, with a learning rate that falls evenly to 0.

    Returns:
        A checkpoint for each epoch.
    """
    named = _trained(model)
    if not named:
        raise BadSetting(f"{type(model).__name__} has no parameter that could be trained")
    optimizer = torch.optim.AdamW(named.values(), lr=task.learning_rate, betas=_BETAS, eps=_EPS)
    count = task.samples if ids is None else len(ids)
    steps, step, found = epochs * math.ceil(count / task.rows_to_train_on), 0, list[Checkpoint]()
    for epoch in range(epochs):
        model.train()
        rates = list[float]()
        for batch in task.batches(shuffle_seed=seed + epoch, ids=ids):
            if len(batch.ids) == 1 < min(count, task.rows_to_train_on):
                continue  # of what is left over; batch normalisation needs two
            rates.append(task.learning_rate * max(0.0, 1 - step / steps))
            optimizer.param_groups[0]["lr"] = rates[-1]
            losses = task.losses(model, batch)
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
            step += 1
            if report is not None:
                report(batch, losses.detach())
        found.append(Checkpoint(_copied(model), _moments(optimizer, named), float(np.mean(rates))))
    return found


def read_checkpoint(path: str | PathLike[str], model: nn.Module) -> Checkpoint:
    """Read a model's ``state_dict`` that ``torch.save`` or Lightning wrote, alone or beside its optimiser's.

    Or a folder that Hugging Face's Trainer wrote. What is frozen may be missing; adapters are called as peft saves
    them, or as the model does. All names may have one prefix, such as ``module.``.
    """
    folder = Path(path)
    if folder.is_dir():
        weights = next((folder / name for name in _WEIGHTS if (folder / name).exists()), None)
        if weights is None:
            raise BadSetting(f"checkpoints: the folder {path} holds no {' and no '.join(_WEIGHTS)}")
        read: Any = {"model": import_module("safetensors.torch").load_file(weights)}
        if (folder / _OPTIMIZER).exists():
            read["optimizer"] = _read(folder / _OPTIMIZER)
    else:
        read = _read(folder)
    if not isinstance(read, Mapping):
        raise BadSetting(f"checkpoints: {path} holds a {type(read).__name__}, and no state_dict")
    content = cast("Mapping[str, Any]", read)
    state = next((content[each] for each in _MODELS if isinstance(content.get(each), Mapping)), content)
    found = Checkpoint(_named_as_in(model, state), {}, 1.0)
    try:
        found.into(model)
    except BadSetting as error:
        raise BadSetting(f"checkpoints: {path}: {error}") from None
    optimizer: Any = next((content[each] for each in _OPTIMIZERS if content.get(each)), {})
    if state is content or not optimizer:
        return found
    optimizer = optimizer[0] if isinstance(optimizer, list) else optimizer  # Lightning has a list
    groups: list[dict[str, Any]] = [group for group in optimizer.get("param_groups", []) if group["params"]]
    names = _names_of(folder, model, groups)
    sizes = [model.get_parameter(name).numel() for name in names]
    rates = [float(group["lr"]) for group in groups for _ in group["params"]]
    if rates and not any(rates) and (ended := folder / "trainer_state.json").exists():
        try:  # over the last of its epochs it fell to 0, evenly unless told
            epochs = max(1.0, float(json.loads(ended.read_bytes())["epoch"]))
        except (ValueError, KeyError, TypeError, OSError):
            raise BadSetting(f"checkpoints: {ended} names no epoch: it is damaged") from None
        rates = [float(group.get("initial_lr", 0)) / 2 / epochs for group in groups for _ in group["params"]]
        say(f"{path} was saved with a learning rate of 0: it counts by that of its epoch, {max(rates):.3g}")
    rate = float(np.average(rates, weights=sizes)) if rates else 1.0
    if rate == 0:
        raise BadSetting(
            f"checkpoints: {path} was saved with a learning rate of 0, by which its scores would count: save it "
            "before the schedule ends"
        )
    relative = {name: each / rate for name, each in zip(names, rates, strict=bool(rates))}
    moments = _moments_of(folder, model, names, groups, optimizer.get("state", {}))
    return Checkpoint(found.state, moments, rate, relative)


def _read(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise BadSetting(f"checkpoints: there is no file {path}") from None
    except OSError as error:
        raise BadSetting(f"checkpoints: {path} cannot be read: {error.strerror}") from None
    except Exception as error:
        problem = str(error).partition("\n")[0]
        raise BadSetting(
            f"checkpoints: {path} cannot be read as plain tensors ({type(error).__name__}: {problem}). Save the "
            "model's state_dict() by torch.save"
        ) from None


def _named_as_in(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state by the model's names: peft saves adapters' parameters without the name of the adapter."""
    named = model.state_dict()
    if not hasattr(model, "peft_config"):
        return dict(zip(_unprefixed(list(state), named), state.values(), strict=True))
    saved = import_module("peft").get_peft_model_state_dict(model, save_embedding_layers=False)
    names = {each.data_ptr(): name for name, each in named.items()}
    state = dict(zip(_unprefixed(list(state), named | saved), state.values(), strict=True))
    return {names[saved[name].data_ptr()] if name in saved else name: each for name, each in state.items()}


def _unprefixed(names: list[str], known: Collection[str]) -> list[str]:
    """Return names without what all begin with, up to a dot, if a model knows them so."""
    short = names
    while short and not any(name in known for name in short):
        heads, _, _ = zip(*(parts := [str(name).partition(".") for name in short]), strict=True)
        if len(set(heads)) > 1 or not parts[0][1]:
            return names
        short = [rest for _, _, rest in parts]
    return short


def _names_of(path: Path, model: nn.Module, groups: list[dict[str, Any]]) -> list[str]:
    """Return an optimiser's parameters: torch numbers these group by group, in their order there."""
    named, trained = dict(model.named_parameters()), _trained(model)
    places = [place for group in groups for place in group["params"]]
    names = _unprefixed([name for group in groups for name in group.get("param_names", [])], named)
    if not names and len(groups) == 2 and path.is_dir():  # Trainer's, the second without weight decay
        decays = import_module("transformers").Trainer.get_decay_parameter_names(None, model)
        names = sorted(trained, key=lambda name: name not in decays)
        if sum(name in decays for name in trained) == len(groups[0]["params"]) and len(names) == len(places):
            return names
        names = []
    names = names or [*(trained if len(places) == len(trained) else named)]
    if places and (len(places) != len(names) or not trained.keys() <= set(names) <= named.keys()):
        raise BadSetting(
            f"checkpoints: the optimizer in {path} has {len(places)} parameters, and the model {len(named)}, of "
            f"which {len(trained)} are trained"
        )
    if len(groups) > 1 and "param_names" not in groups[0]:
        raise BadSetting(
            f"checkpoints: the optimizer in {path} has {len(groups)} groups of parameters, and does not name "
            "them: make it of model.named_parameters(), so that it has their names, or take adam=False and "
            "save the model alone"
        )
    return names if places else []


def _moments_of(path: Path, model: nn.Module, names: list[str], groups: Any, state: Any) -> dict[str, Moments]:
    """Return Adam's state by the names of parameters."""
    named, found = dict(model.named_parameters()), dict[str, Moments]()
    places = [place for group in groups for place in group["params"]]
    settings = [group for group in groups for _ in group["params"]]
    for name, place, group in zip(names, places, settings, strict=bool(places)):
        its: Mapping[str, Any] = state.get(place, {})
        if "exp_avg_sq" not in its:
            continue
        if its["exp_avg"].shape != named[name].shape:
            raise BadSetting(
                f"checkpoints: the optimizer in {path} has a state of shape {tuple(its['exp_avg'].shape)} where "
                f"{name} has {tuple(named[name].shape)}: its parameters stand in another order"
            )
        betas, eps = group.get("betas", _BETAS), group.get("eps", _EPS)
        mean, square = (its[each].to(named[name].device) for each in ("exp_avg", "exp_avg_sq"))
        found[name] = Moments(mean, square, int(its["step"]), tuple(betas), float(eps))
    return found


def adam_direction(gradient: Tensor, moments: Moments) -> Tensor:
    """Return the step that Adam would take on single samples' gradients, without the learning rate.

    Source: Xia et al., LESS (2402.04333), section 3.1, with Adam's bias correction (Kingma & Ba, 1412.6980).

    The gradient has shape ``(n, *parameter)``.
    """
    step, (fast, slow) = moments.step + 1, moments.betas
    mean = (fast * moments.mean + (1 - fast) * gradient) / (1 - fast**step)
    square = (slow * moments.square + (1 - slow) * gradient**2) / (1 - slow**step)
    return mean / (square.sqrt() + moments.eps)


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: each for name, each in model.named_parameters() if each.requires_grad}


def _copied(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of a model's state, without what is frozen."""
    frozen = {name for name, each in model.named_parameters(remove_duplicate=False) if not each.requires_grad}
    return {name: value.detach().clone() for name, value in model.state_dict().items() if name not in frozen}


def _moments(optimizer: torch.optim.Optimizer, named: Mapping[str, nn.Parameter]) -> dict[str, Moments]:
    found = {name: optimizer.state[each] for name, each in named.items() if optimizer.state.get(each)}
    return {
        name: Moments(each["exp_avg"].clone(), each["exp_avg_sq"].clone(), int(each["step"]))
        for name, each in found.items()
    }
