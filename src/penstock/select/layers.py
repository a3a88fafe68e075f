"""The last linear layer that a model calls: what it is given, and gradients of single samples there."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from penstock.errors import BadSetting
from penstock.select.gradients import projected


def sketched_gradients(model: nn.Module, losses: Callable[[], Tensor], side: int, seed: int) -> Tensor:
    """Return each sample's gradient of the last linear layer's weights, both factors of it projected if long.

    Source: Choe et al., What is Your Data Worth to GPT? (2405.13954).

    ``losses`` computes the losses, shape ``(n,)``. The factors are what the layer was given and the gradient at
    what it gave; longer ones are projected to length ``side``. The result has shape ``(n, d)``, where d is the
    product of the factors' lengths.
    """
    with last_linear(model) as call:
        each = losses()
    given, version, edge, times = call()
    if times != 1:
        raise BadSetting(
            f"{type(model).__name__} calls its last linear layer {times} times; gradients are compared of "
            "layers that are called once"
        )
    if given._version != version:
        raise BadSetting(
            "what the last linear layer was given is changed in place behind it, so its gradients are unknown: "
            "give that operation a copy"
        )
    (grad,) = torch.autograd.grad(each.sum(), [cast("GradientEdge", edge)])
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


class Call(NamedTuple):
    """The last call of a linear layer."""

    given: Tensor  # what the layer was given
    version: int  # version of that memory then
    edge: GradientEdge | None  # where gradients come back to what it gave; None where there are none
    times: int  # how often this layer has been called


@contextmanager
def last_linear(model: nn.Module) -> Generator[Callable[[], Call]]:
    """Record the last call of a linear layer, and yield what returns it; with a gradient where there is one."""
    layers = [each for each in model.modules() if isinstance(each, nn.Linear)]
    if not layers:
        raise BadSetting(f"{type(model).__name__} has no linear layer, whose inputs this method compares")
    times, last = Counter[nn.Module](), list[Call]()

    def record(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        if output.requires_grad or not torch.is_grad_enabled():
            given: Tensor = args[0] if args else kwargs["input"]
            # The edge stays where it is when an activation changes the output in place.
            edge = get_gradient_edge(output) if output.requires_grad else None
            times[layer] += 1
            version = given._version if edge else 0  # a tensor of inference mode has none
            last[:] = [Call(given, version, edge, times[layer])]

    def call() -> Call:
        if not last:
            raise BadSetting(f"{type(model).__name__} calls none of its linear layers, whose inputs are compared")
        return last[0]

    hooks = [each.register_forward_hook(record, with_kwargs=True) for each in layers]
    try:
        yield call
    finally:
        for hook in hooks:
            hook.remove()
