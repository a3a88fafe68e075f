"""Gradients of single samples, exact and many at a time, of the weights of linear and convolution layers."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeGuard, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional

from penstock.errors import BadSetting
from penstock.scoring.projection import projected
from penstock.tracebacks import users_stacklevel

Layer = nn.Linear | nn.Conv2d
_ANY = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_MEMORY_BYTES = 8 << 20  # fits the caches of CPUs; of 4 to 16 MiB none was faster


class RowGradients(NamedTuple):
    """Gradients of single samples, of some rows of a layer's weight: shape ``(n, rows, *weight.shape[1:])``."""

    layer: str
    rows: slice
    gradients: Tensor


def layers_of(model: nn.Module) -> dict[str, Layer]:
    """Return the layers whose weights are trained, by name: linear ones, and two-dimensional convolutions.

    A warning names convolutions of other kinds, which are left out.

    Raises:
        BadSetting: there are none.
    """
    found = {name: each for name, each in model.named_modules() if _is_exact(each) and _is_trained(each)}
    if not found:
        raise BadSetting(f"{type(model).__name__} has no linear layer and no convolution that is trained")
    others = [name for name, each in model.named_modules() if isinstance(each, _ANY) and not _is_exact(each)]
    if others:
        warnings.warn(
            f"gradients of {len(found)} layers are compared, and those of {', '.join(others)} are left out: "
            "convolutions in 1 or 3 dimensions, with groups, or whose padding is not a number of zeros",
            stacklevel=users_stacklevel(),
        )
    return found


def _is_exact(module: nn.Module) -> TypeGuard[Layer]:
    if isinstance(module, nn.Conv2d):
        return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return isinstance(module, nn.Linear)


def _is_trained(layer: Layer) -> bool:
    return layer.weight.requires_grad and layer.weight.numel() > 0


class SampleGradients:
    """Each sample's gradient of the weights of some layers, a few rows of a weight at a time.

    A layer's gradient is the product of what it was given and of the gradient at what it gave: hooks keep the
    first, and one backward pass gives the second for all samples at once. A layer that is called several times
    adds up; one that is not called, or does not count in the loss, has a gradient of 0. No sample's loss may
    depend on another sample, so a model must be in evaluation mode, and layers are given samples along their
    first axis.

    They come in one small memory: gradients of many samples and large layers are never held, and
    pages that the kernel hands out anew would cost more than the products.

    Source: Goodfellow, Efficient Per-Example Gradient Computations (1510.01799); Rochette et al. (1912.06015) for
    convolutions.

    Args:
        layers: The layers, on one device.
    """

    def __init__(self, layers: dict[str, Layer]) -> None:
        self._layers = layers
        device = next(iter(layers.values())).weight.device
        self._memory = torch.empty(_MEMORY_BYTES, dtype=torch.uint8, device=device)

    def by_rows(self, losses: Callable[[], Tensor]) -> Generator[RowGradients]:
        """Yield gradients in the order of the layers and their rows; each is valid until the next is asked for.

        Args:
            losses: Computes the losses, shape ``(n,)``.

        Raises:
            BadSetting: no layer was called, one was given another number of samples, or what it was given was
                changed in place.
        """
        with _watched(self._layers) as calls:
            each = losses()
        if not calls:
            raise BadSetting(
                f"the model calls none of its layers {', '.join(self._layers)}, so they have no gradients"
            )
        if others := [call for call in calls if len(call.given) != len(each)]:
            raise BadSetting(
                f"layer {others[0].name} is given shape {tuple(others[0].given.shape)} for {len(each):,} samples: "
                "gradients of single samples need them along the first axis"
            )
        grads = torch.autograd.grad(each.sum(), [call.edge for call in calls], allow_unused=True)
        for name, layer in self._layers.items():
            factors = [
                _factors(layer, call.unchanged(), grad)
                for call, grad in zip(calls, grads, strict=True)
                if call.name == name and grad is not None  # pyright: ignore[reportUnnecessaryComparison]
            ]
            weight = layer.weight.detach()
            memory = self._memory.view(weight.dtype)
            rows = max(1, len(memory) // (len(each) * weight[0].numel()))
            for here in (slice(start, start + rows) for start in range(0, len(weight), rows)):
                shape = (len(each), len(weight[here]), weight[0].numel())
                size = math.prod(shape)
                gradients = (memory[:size] if size <= len(memory) else weight.new_empty(size)).view(shape)
                for place, (left, right) in enumerate(factors):
                    gradients.baddbmm_(left[:, here], right, beta=float(place > 0))
                if not factors:
                    gradients.zero_()
                yield RowGradients(name, here, gradients.view(len(each), *weight[here].shape))


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
    with _watched(_linear(model)) as calls:
        total = losses().sum()
    times = sum(call.name == calls[-1].name for call in calls) if calls else 0
    if times != 1:
        raise BadSetting(
            f"{type(model).__name__} calls its last linear layer {times} times; gradients are compared of "
            "layers that are called once"
        )
    last = calls[-1]
    (grad,) = torch.autograd.grad(total, [last.edge])
    left, right = (
        projected([each.flatten(0, -2)], each.shape[-1], side, seed + i).view(*each.shape[:-1], -1)
        for i, each in enumerate((grad, last.unchanged()))
    )
    return torch.einsum("n...o,n...i->noi", left, right).flatten(1)


@contextmanager
def last_linear(model: nn.Module) -> Generator[Callable[[], Tensor]]:
    """Keep what the linear layer is given that a model calls last; what is yielded returns it.

    Raises:
        BadSetting: the model has no linear layer.
    """
    kept = list[Tensor]()

    def keep(_: nn.Module, given: tuple[Any, ...]) -> None:
        kept[:] = [given[0]]

    hooks = [layer.register_forward_pre_hook(keep) for layer in _linear(model).values()]
    try:
        yield lambda: kept[0]
    finally:
        for hook in hooks:
            hook.remove()


def _linear(model: nn.Module) -> dict[str, Layer]:
    linear: dict[str, Layer] = {name: each for name, each in model.named_modules() if isinstance(each, nn.Linear)}
    if not linear:
        raise BadSetting(f"{type(model).__name__} has no linear layer, whose inputs this method compares")
    return linear


class _Call(NamedTuple):
    """A layer's call: what it was given, at which version of that memory, and where gradients come back to it."""

    name: str
    given: Tensor
    version: int
    edge: GradientEdge

    def unchanged(self) -> Tensor:
        """Return what the layer was given.

        Raises:
            BadSetting: it has another content now.
        """
        if self.given._version != self.version:
            raise BadSetting(
                f"what layer {self.name} was given is changed in place behind it, so its gradients cannot be "
                "told: give that operation a copy"
            )
        return self.given.detach()


@contextmanager
def _watched(layers: dict[str, Layer]) -> Generator[list[_Call]]:
    """Keep the layers' calls that gradients come back to."""
    calls = list[_Call]()

    def keeps(name: str) -> Callable[..., None]:
        def keep(_: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
            if output.requires_grad:  # the edge stays where it is when an activation changes the output in place
                calls.append(_Call(name, given[0], given[0]._version, get_gradient_edge(output)))

        return keep

    hooks = [layer.register_forward_hook(keeps(name)) for name, layer in layers.items()]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _factors(layer: Layer, given: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Return what, multiplied for each sample, sums outer products over positions to the weight's gradient.

    Returns:
        Shapes ``(n, outputs, positions)`` and ``(n, positions, inputs)``, in the weight's type.
    """
    if isinstance(layer, nn.Conv2d):
        left, right = grad.flatten(2), _patches(layer, given).transpose(1, 2)
    elif given.dim() == 2:
        left, right = grad.unsqueeze(2), given.unsqueeze(1)
    else:
        left, right = grad.flatten(1, -2).transpose(1, 2), given.flatten(1, -2)
    return left.to(layer.weight.dtype), right.to(layer.weight.dtype)


def _patches(layer: nn.Conv2d, given: Tensor) -> Tensor:
    """Return what a convolution multiplies its weight with, shape ``(n, inputs, positions)``.

    ``functional.unfold`` does the same, but one sample after another, with threads for its channels.
    """
    (top, left), (down, right) = cast("tuple[int, int]", layer.padding), layer.kernel_size
    patches = functional.pad(given, (left, left, top, top))
    for axis, (kernel, stride, dilation) in enumerate(
        zip((down, right), layer.stride, layer.dilation, strict=True)
    ):
        patches = patches.unfold(2 + axis, dilation * (kernel - 1) + 1, stride)[..., ::dilation]
    return patches.permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)
