"""What models do with parameters, seen while they do it: each use, and each sample's gradient by it."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from penstock.errors import BadSetting

_PRODUCTS = {torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__}
_SUMS = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__}
_SCALINGS = {torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__}
_CONVOLUTIONS = {torch.conv1d, torch.conv2d, torch.conv3d}
_NORMS = {torch.batch_norm: 1, torch.instance_norm: 1, torch.group_norm: 2, torch.layer_norm: 2, torch.rms_norm: 2}
"""Where their weight stands; all but the last have a bias behind it."""
_OF_CHANNELS = {torch.batch_norm, torch.instance_norm, torch.group_norm}


class SampleAxis(NamedTuple):
    """Where samples are: on an axis, which may hold several positions of each, one after another or in turn."""

    axis: int
    in_turn: bool = False
    several: bool = False

    @staticmethod
    def possible(shape: Sequence[int], samples: int, axes: Iterable[int]) -> list[SampleAxis]:
        """Return those that a shape can have, if samples may be on these axes."""
        found = [SampleAxis(axis) for axis in axes if shape[axis] == samples]
        if 0 in axes and shape[0] > samples and shape[0] % samples == 0:
            found += [SampleAxis(0, several=True), SampleAxis(0, in_turn=True, several=True)]
        return found

    def split(self, values: Tensor, samples: int) -> Tensor:
        """Return values with samples along their first axis, and the positions of the axis along the second."""
        values = values.movedim(self.axis, 0)
        if self.in_turn:
            return values.unflatten(0, (-1, samples)).transpose(0, 1)
        return values.unflatten(0, (samples, -1))


Adds = Callable[[Tensor, slice, Tensor, SampleAxis], None]
"""Adds gradients of some rows, given the gradient of what the operation gave and where that has its samples."""


class Use(NamedTuple):
    """A use of a parameter, or of what is computed of parameters alone."""

    of: Tensor  # what is used
    operation: str
    given: tuple[Tensor, int] | None
    """The other operand, and the version of its memory; None where that does not matter."""
    edge: GradientEdge  # where gradients come back to what the operation gives
    shape: torch.Size
    adds: Adds
    axes: list[int]  # those of the output on which samples may be

    def check(self, name: str) -> None:
        """Raise BadSetting if what the operation was given has another content now."""
        if self.given and self.given[0]._version != self.given[1]:
            raise BadSetting(
                f"what {name} is applied to is changed in place behind it, so its gradients are unknown: give "
                "that operation a copy"
            )


class Uses(TorchFunctionMode):
    """Sees what is done with these parameters while it is entered.

    Functions that torch writes in Python, such as attention, are opened; norms are taken apart into a norm
    without parameters, a scaling and a shift. What is computed of parameters alone (a transposed weight, an
    embedding of positions that all samples share) is seen as they are.
    """

    def __init__(self, parameters: Iterable[Tensor], samples: int) -> None:
        super().__init__()
        self.found = list[Use]()
        self._own = {id(each): each for each in parameters}  # held, so that no other tensor gets such an id
        self._samples = samples  # how many samples the model is given at once

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do what is asked, and note which parameters that uses."""
        kwargs = kwargs or {}
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if func is torch.batch_norm and args[5]:
            raise BadSetting(
                "the model has a batch normalisation without running statistics: a sample's loss depends on the "
                "others of its batch, and has no gradient of its own. Use another norm, or running statistics"
            )
        own = [id(each) in self._own for each in tensors]
        if not any(own) and func is not functional.batch_norm:
            return func(*args, **kwargs)
        if all(own):
            result = func(*args, **kwargs)
            self._hold(result)
            return result
        if isinstance(func, FunctionType) and func.__module__ == functional.__name__:
            with self:
                return _opened(func)(*args, **kwargs)
        if func in _NORMS:
            return self._normed(func, args)
        output = func(*args, **kwargs)
        if func is functional.linear:
            its = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
            self._multiplied(output, its["weight"], its["input"], its.get("bias"))
        if kwargs:
            return output
        if func is torch.addmm:
            self._multiplied(output, args[2], args[1], args[0], transposed=True)
        elif func in _PRODUCTS and args[1].dim() == 2 <= args[0].dim():
            self._multiplied(output, args[1], args[0], None, transposed=True)
        elif func in _CONVOLUTIONS:
            self._convolved(output, *args, *(None, 1, 0, 1, 1)[len(args) - 2 :])
        elif func is torch.embedding:
            self._looked_up(output, *args[:3])
        elif func in _SUMS | _SCALINGS and len(own) == 2:
            mine, other = args if own[0] else reversed(args)
            self._elementwise(output, mine, other if func in _SCALINGS else None, mine.shape)
        return output

    def _hold(self, result: Any) -> None:
        for each in tree_leaves(result):
            if isinstance(each, Tensor) and each.requires_grad:
                self._own[id(each)] = each

    def _use(
        self, of: Any, operation: str, given: Tensor | None, output: Tensor, adds: Adds, axes: Iterable[int]
    ) -> None:
        if of is not None and id(of) in self._own and output.requires_grad:
            version = None if given is None else (given, given._version)
            self.found.append(Use(of, operation, version, get_gradient_edge(output), output.shape, adds, [*axes]))

    def _multiplied(
        self, output: Tensor, weight: Tensor, given: Tensor, bias: Tensor | None, *, transposed: bool = False
    ) -> None:
        def adds(into: Tensor, rows: slice, grad: Tensor, layout: SampleAxis) -> None:
            each = [layout.split(one, len(into)).flatten(1, -2).to(into.dtype) for one in (given.detach(), grad)]
            left, right = each if transposed else reversed(each)
            into.baddbmm_(left[:, :, rows].transpose(1, 2), right)

        self._use(weight, "product", given, output, adds, range(output.dim() - 1))
        if bias is not None:
            self._elementwise(output, bias, None, bias.shape)

    def _convolved(
        self,
        output: Tensor,
        given: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Any,
        padding: Any,
        dilation: Any,
        groups: int,
    ) -> None:
        def adds(into: Tensor, rows: slice, grad: Tensor, layout: SampleAxis) -> None:
            patches = _patches(given.detach(), weight.shape[2:], stride, padding, dilation)
            left, right = (
                layout.split(each.flatten(2), len(into)).transpose(1, 2).flatten(2).to(into.dtype)
                for each in (grad, patches)
            )
            its = len(weight) // groups  # rows of a group, which meets inputs of its own
            for group, inputs in enumerate(right.chunk(groups, 1)):
                start, stop = max(rows.start, group * its), min(rows.stop, (group + 1) * its)
                if start < stop:
                    here = into.flatten(2)[:, start - rows.start : stop - rows.start]
                    here.baddbmm_(left[:, start:stop], inputs.transpose(1, 2))

        self._use(weight, "convolution", given, output, adds, range(int(given.dim() == weight.dim())))
        if bias is not None:
            self._elementwise(output, bias, None, (len(bias), *[1] * (weight.dim() - 2)))

    def _looked_up(self, output: Tensor, weight: Tensor, ids: Tensor, padding: int = -1) -> None:
        if self._samples > 1 and _is_shared(ids, self._samples):
            self._hold(output)
            return

        def adds(into: Tensor, rows: slice, grad: Tensor, layout: SampleAxis) -> None:
            here = layout.split(ids, len(into)).flatten(1)
            each = layout.split(grad, len(into)).flatten(1, -2).to(into.dtype)
            places = ((here != padding) & (here >= rows.start) & (here < rows.start + into.shape[1])).nonzero()
            sample, position = places.unbind(1)
            into.index_put_((sample, here[sample, position] - rows.start), each[sample, position], accumulate=True)

        self._use(weight, "embedding", ids, output, adds, range(ids.dim()))

    def _normed(self, func: Any, args: tuple[Any, ...]) -> Tensor:
        at = _NORMS[func]
        its = slice(at, at + 1 + (func is not torch.rms_norm))
        bare = [*args]
        bare[its] = [None] * len(args[its])
        result = func(*bare)
        for own, apply in zip(args[its], (torch.mul, torch.add), strict=False):
            if own is not None:
                shape = (len(own), *[1] * (result.dim() - 2)) if func in _OF_CHANNELS else own.shape
                before, result = result, apply(result, own.view(shape))
                self._elementwise(result, own, before if apply is torch.mul else None, shape)
        return result

    def _elementwise(self, output: Tensor, own: Tensor, other: Tensor | None, shape: Sequence[int]) -> None:
        """Note a sum with something of that shape, or the product of it and another tensor."""
        full = [1] * (output.dim() - len(shape)) + [*shape]

        def adds(into: Tensor, rows: slice, grad: Tensor, layout: SampleAxis) -> None:
            each = layout.split((grad if other is None else grad * other.detach()).to(into.dtype), len(into))
            others = full[: layout.axis] + full[layout.axis + 1 :]
            summed = each.sum([1, *(axis for axis, length in enumerate(others, 2) if length == 1)])
            into += summed.view(len(into), *(own.shape or (1,)))[:, rows]

        axes = [axis for axis in range(output.dim()) if full[axis] == 1]
        self._use(own, "sum" if other is None else "scaling", other, output, adds, axes)


def _is_shared(ids: Tensor, samples: int) -> bool:
    """Whether all samples look the same up, as they do their positions."""
    if ids.dim() == 1:
        return bool(len(ids) % samples) or (len(ids) > 1 and bool((ids.diff() == 1).all()))
    return len(ids) == 1


@cache
def _opened(func: FunctionType) -> FunctionType:
    """Return a function of torch's whose body does not ask whether somebody wants to see it whole."""
    asks = dict.fromkeys((name for name in func.__globals__ if name.startswith("has_torch_function")), _nobody)
    return FunctionType(func.__code__, func.__globals__ | asks, func.__name__, func.__defaults__, func.__closure__)


def _nobody(*_: object) -> bool:
    return False


def _patches(given: Tensor, kernel: Sequence[int], stride: Any, padding: Any, dilation: Any) -> Tensor:
    """Return what a convolution multiplies its weight with, shape ``(n, inputs, positions)``.

    ``functional.unfold`` does the same, but one sample after another, with threads for its channels.
    """
    strides, dilations = (_of_axes(each, len(kernel)) for each in (stride, dilation))
    whole = [apart * (length - 1) for length, apart in zip(kernel, dilations, strict=True)]
    if padding == "same":
        sides = [(each // 2, each - each // 2) for each in whole]
    else:
        sides = [(each, each) for each in _of_axes(0 if padding == "valid" else padding, len(kernel))]
    patches = functional.pad(given, [side for each in reversed(sides) for side in each])
    for axis, (length, step, apart) in enumerate(zip(whole, strides, dilations, strict=True), 2):
        patches = patches.unfold(axis, length + 1, step)[..., ::apart]
    places = range(2, 2 + len(whole))
    patches = patches.permute(0, 1, *(each + len(whole) for each in places), *places)
    return patches.flatten(2 + len(whole)).flatten(1, 1 + len(whole))


def _of_axes(given: Any, axes: int) -> list[int]:
    numbers = [given] if isinstance(given, int) else [*given]
    return numbers * (axes // len(numbers))
