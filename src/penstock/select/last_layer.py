"""The linear layer that a model calls last: what it is given, and sketches of its gradients."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from penstock.errors import BadSetting
from penstock.select.projection import projected


def sketched_gradients(model: nn.Module, losses: Callable[[], Tensor], side: int, seed: int) -> Tensor:
    """Return each sample's gradient of the last linear layer's weights, both factors of it projected if long.

    Source: Choe et al., What is Your Data Worth to GPT? (2405.13954).

    Args:
        model: The model.
        losses: Computes the losses, shape ``(n,)``.
        side: Length that what the layer was given, and the gradient at what it gave, are projected to if longer.
        seed: Random seed of the projections.

    Returns:
        Shape ``(n, d)``, where d is the product of the factors' lengths.
    """
    calls = list[tuple[nn.Module, Tensor, int, GradientEdge]]()

    def keep(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        if output.requires_grad:  # the edge stays where it is when an activation changes the output in place
            given = _given(args, kwargs)
            calls.append((layer, given, given._version, get_gradient_edge(output)))

    hooks = [each.register_forward_hook(keep, with_kwargs=True) for each in _linear(model)]
    try:
        each = losses()
    finally:
        for hook in hooks:
            hook.remove()
    times = sum(layer is calls[-1][0] for layer, *_ in calls) if calls else 0
    if times != 1:
        raise BadSetting(
            f"{type(model).__name__} calls its last linear layer {times} times; gradients are compared of "
            "layers that are called once"
        )
    _, given, version, edge = calls[-1]
    if given._version != version:
        raise BadSetting(
            "what the last linear layer was given is changed in place behind it, so its gradients cannot be told: "
            "give that operation a copy"
        )
    (grad,) = torch.autograd.grad(each.sum(), [edge])
    if len(given) != len(each):
        raise BadSetting(
            f"the last linear layer is given shape {tuple(given.shape)} for {len(each):,} samples: gradients of "
            "single samples need them along the first axis"
        )
    left, right = (
        projected([one.flatten(0, -2)], one.shape[-1], side, seed + i).view(*one.shape[:-1], -1)
        for i, one in enumerate((grad, given.detach()))
    )
    return torch.einsum("n...o,n...i->noi", left, right).flatten(1)


@contextmanager
def last_linear(model: nn.Module) -> Generator[Callable[[], Tensor]]:
    """Keep what the linear layer is given that a model calls last; what is yielded returns it.

    Raises:
        BadSetting: the model has no linear layer, or calls none.
    """
    kept = list[Tensor]()

    def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        kept[:] = [_given(args, kwargs)]

    def given() -> Tensor:
        if not kept:
            raise BadSetting(f"{type(model).__name__} calls none of its linear layers, whose inputs are compared")
        return kept[0]

    hooks = [each.register_forward_pre_hook(keep, with_kwargs=True) for each in _linear(model)]
    try:
        yield given
    finally:
        for hook in hooks:
            hook.remove()


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return args[0] if args else kwargs["input"]


def _linear(model: nn.Module) -> list[nn.Linear]:
    found = [each for each in model.modules() if isinstance(each, nn.Linear)]
    if not found:
        raise BadSetting(f"{type(model).__name__} has no linear layer, whose inputs this method compares")
    return found
