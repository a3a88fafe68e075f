"""Linear layers: what the last one is given, its gradients, and low-rank adapters (LoRA) beside them."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from penstock.basics.terminal import listed, say
from penstock.errors import BadSetting
from penstock.select.gradients import projected


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


class LowRank(nn.Module):
    """A linear layer that is frozen, and a trained one of low rank beside it.

    Source: Hu et al., LoRA (2106.09685): the second matrix begins at 0.

    Args:
        frozen: The layer.
        rank: Of what is trained.
    """

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, rank, bias=False, device=frozen.weight.device)
        self.up = nn.Linear(rank, frozen.out_features, bias=False, device=frozen.weight.device)
        torch.nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what both give together."""
        return self.frozen(inputs) + self.up(self.down(inputs))


def adapted(model: nn.Module, rank: int) -> nn.Module:
    """Freeze a model, and put an adapter beside each linear layer; change it in place, and say which get none.

    Raises:
        BadSetting: a layer of it can have none.
    """
    model.requires_grad_(False)
    without = [
        name
        for name, module in model.named_modules()
        if not isinstance(module, nn.Linear | nn.Embedding)
        and any(each.dim() > 1 for each in module.parameters(False))
    ]
    if without:
        say(f"lora_rank: no adapter beside {listed(without, 5)}; make_model may give peft's")
    for module in list(model.modules()):
        if isinstance(module, nn.TransformerEncoderLayer):
            raise BadSetting(
                "lora_rank: nn.TransformerEncoderLayer uses weights of its linear layers without calling these, "
                "so that no adapter can stand beside them: use layers of your own, or leave lora_rank out"
            )
        if isinstance(module, nn.MultiheadAttention):
            continue  # as above
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and not isinstance(module, LowRank):
                setattr(module, name, LowRank(child, rank))
    return model
