"""Gradients of single samples, exact and many at a time, of the weights of linear and convolution layers."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.errors import BadSetting
from penstock.scoring.projection import projected

Layer = nn.Linear | nn.Conv2d


def layers_of(model: nn.Module) -> dict[str, Layer]:
    """Return the layers whose weights are trained, by name: linear ones, and convolutions without groups.

    Raises:
        BadSetting: there are none.
    """
    found = {name: each for name, each in model.named_modules() if _is_exact(each) and each.weight.requires_grad}
    if not found:
        raise BadSetting(f"{type(model).__name__} has no linear layer and no convolution that is trained")
    return found


def _is_exact(module: nn.Module) -> TypeGuard[Layer]:
    if isinstance(module, nn.Conv2d):
        return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return isinstance(module, nn.Linear)


def per_sample_gradients(layers: dict[str, Layer], losses: Callable[[], Tensor]) -> dict[str, Tensor]:
    """Return each sample's gradient of the weights of some layers, by the layer's name.

    A layer's gradient is the product of what it was given and of the gradient at what it gave: hooks keep the
    first, and one backward pass gives the second for all samples at once. A layer that is called several times
    adds up. No sample's loss may depend on another sample, so a model must be in evaluation mode.

    Source: Goodfellow, Efficient Per-Example Gradient Computations (1510.01799); Rochette et al. (1912.06015) for
    convolutions.

    Args:
        layers: The layers.
        losses: Computes the losses, shape ``(n,)``.

    Returns:
        Gradients of shape ``(n, *weight.shape)``; of layers that were called.

    Raises:
        BadSetting: none was.
    """
    with _watched(layers) as calls:
        total = losses().sum()
    if not calls:
        raise BadSetting(f"the model calls none of its layers {', '.join(layers)}, so they have no gradients")
    grads = torch.autograd.grad(total, [output for _, _, output in calls])
    found: dict[str, Tensor] = {}
    for (name, given, _), grad in zip(calls, grads, strict=True):
        gradient = _outer(layers[name], given.detach(), grad)
        found[name] = found[name] + gradient if name in found else gradient
    return found


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
    layer = _last(model)
    with _watched({"": layer}) as calls:
        total = losses().sum()
    if len(calls) != 1:
        raise BadSetting(
            f"{type(model).__name__} calls its last linear layer {len(calls)} times; gradients are compared of "
            "layers that are called once"
        )
    ((_, given, output),) = calls
    (grad,) = torch.autograd.grad(total, [output])
    left, right = (
        projected([each.detach().flatten(0, -2)], side, seed + i).view(*each.shape[:-1], -1)
        for i, each in enumerate((grad, given))
    )
    return torch.einsum("n...o,n...i->noi", left, right).flatten(1)


@contextmanager
def last_linear(model: nn.Module) -> Generator[Callable[[], Tensor]]:
    """Keep what the last linear layer of a model is given; what is yielded returns it of the last forward pass.

    Raises:
        BadSetting: the model has no linear layer.
    """
    kept = list[Tensor]()

    def keep(_: nn.Module, given: tuple[Any, ...]) -> None:
        kept[:] = [given[0]]

    hook = _last(model).register_forward_pre_hook(keep)
    try:
        yield lambda: kept[0]
    finally:
        hook.remove()


def _last(model: nn.Module) -> nn.Linear:
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise BadSetting(f"{type(model).__name__} has no linear layer, whose inputs this method compares")
    return linear[-1]


@contextmanager
def _watched(layers: dict[str, Layer]) -> Generator[list[tuple[str, Tensor, Tensor]]]:
    calls = list[tuple[str, Tensor, Tensor]]()

    def keeps(name: str) -> Callable[..., None]:
        def keep(_: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
            calls.append((name, given[0], output))

        return keep

    hooks = [layer.register_forward_hook(keeps(name)) for name, layer in layers.items()]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _outer(layer: Layer, given: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of each sample: sums, over positions, of outer products."""
    if isinstance(layer, nn.Conv2d):
        unfolded = functional.unfold(
            given,
            cast("tuple[int, int]", layer.kernel_size),
            cast("tuple[int, int]", layer.dilation),
            cast("tuple[int, int]", layer.padding),
            cast("tuple[int, int]", layer.stride),
        )
        product = torch.bmm(grad.flatten(2), unfolded.transpose(1, 2))
    elif given.dim() == 2:
        product = grad.unsqueeze(2) * given.unsqueeze(1)
    else:
        product = torch.bmm(grad.flatten(1, -2).transpose(1, 2), given.flatten(1, -2))
    return product.view(len(product), *layer.weight.shape)
