"""Gradients of single samples, exact and many at a time, and random projections of them."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from penstock.basics.terminal import listed
from penstock.errors import BadSetting
from penstock.select.parameter_uses import SampleAxis, Use, Uses

_MEMORY_BYTES = 8 << 20  # fits the caches of CPUs; of 4 to 16 MiB none was faster
_SAME = 5e-3  # of numbers of 32 bits, as GPUs multiply them
_ROUGHLY = 5e-2  # of 16 bits
_NOTHING = 1e-6  # of the longest gradient


class RowGradients(NamedTuple):
    """Gradients of single samples, of some rows of a parameter: shape ``(n, rows, *parameter.shape[1:])``."""

    parameter: str
    rows: slice
    gradients: Tensor


class SampleGradients:
    """Each sample's gradient of a model's trained parameters, a few rows of a parameter at a time.

    The gradient of a parameter is the sum over its uses. Each is computed from the inputs that it meets and the
    gradient at the output; one backward pass gives the latter for all samples at once. A second backward pass
    with a weight for each sample finds the batch axis and proves that samples do not interact: the weighted sum of
    these gradients must be torch's own. Parameters for which it is not are left out: those of
    operations without a formula (LSTM, transposed convolutions), and those before one that mixes samples.

    They come in one small memory: gradients of many samples and large layers are never held, and
    pages that the kernel hands out anew would cost more than the products.

    Source: Goodfellow, Efficient Per-Example Gradient Computations (1510.01799); Rochette et al. (1912.06015) for
    convolutions.

    The model is in evaluation mode, on one device. ``losses`` computes the losses of ``samples`` samples, shape
    ``(n,)``, here to see what the model does.
    """

    def __init__(self, model: nn.Module, losses: Callable[[], Tensor], samples: int) -> None:
        self._trained = {
            name: each for name, each in model.named_parameters() if each.requires_grad and each.numel()
        }
        if not self._trained:
            raise BadSetting(f"{type(model).__name__} has no parameter that is trained")
        self._names = {id(each): name for name, each in self._trained.items()}
        self._layouts = dict[tuple[object, ...], list[SampleAxis | None]]()
        device = next(iter(self._trained.values())).device
        self._memory = torch.empty(_MEMORY_BYTES, dtype=torch.uint8, device=device)
        self.parameters, self.left_out = dict(self._trained), list[str]()
        """Those that are compared, by name, of tied ones the first; the names of the others that are trained."""
        _, self.left_out = self._seen(losses, samples)
        for name in self.left_out:
            del self.parameters[name]
        if not self.parameters:
            raise BadSetting(
                f"{type(model).__name__}: {self.summary()}. A sample's loss depends on others of its batch, "
                "or none is used as those of linear layers, convolutions, embeddings, norms and attention are"
            )

    @property
    def length(self) -> int:
        """How many numbers are compared."""
        return sum(each.numel() for each in self.parameters.values())

    def summary(self) -> str:
        """Return how much of the model is compared, and what is left out."""
        total = sum(each.numel() for each in self._trained.values())
        left_out = f"; left out: {listed(self.left_out, 5)}" if self.left_out else ""
        return f"compares {self.length:,} of {total:,} parameters{left_out}"

    def by_rows(self, losses: Callable[[], Tensor], samples: int) -> Generator[RowGradients]:
        """Yield gradients in the order of parameters and rows; each is valid until the next is asked for."""
        batch, wrong = self._seen(losses, samples)
        if wrong:
            raise BadSetting(
                f"gradients of single samples are known for {wrong[0]} in some batches only: let the model do "
                "the same with each, or freeze this parameter"
            )
        yield from self._rows(batch)

    def _rows(self, batch: _Uses) -> Generator[RowGradients]:
        for name, parameter in self.parameters.items():
            shape = parameter.shape or (1,)
            memory = self._memory.view(parameter.dtype)
            rows = max(1, len(memory) // (batch.samples * math.prod(shape[1:])))
            for here in (slice(start, min(start + rows, shape[0])) for start in range(0, shape[0], rows)):
                its = (batch.samples, here.stop - here.start, *shape[1:])
                size = math.prod(its)
                gradients = (memory[:size] if size <= len(memory) else parameter.detach().new_empty(size)).view(
                    its
                )
                gradients.zero_()
                for use, grad, layout in batch.uses:
                    if use.of is parameter:
                        use.adds(gradients, here, grad, layout)
                if name in batch.others:
                    gradients += batch.others[name].view(batch.samples, *shape)[:, here]
                yield RowGradients(name, here, gradients)

    def _seen(self, losses: Callable[[], Tensor], samples: int) -> tuple[_Uses, list[str]]:
        """Return the uses of a batch, and the parameters whose gradients cannot be computed from them."""
        with Uses(self._trained.values(), samples) as seen:
            each = losses()
        uses = [use for use in seen.found if self._names.get(id(use.of)) not in self.left_out]
        for use in uses:
            use.check(self._names.get(id(use.of), "what is computed of parameters"))
        edges = [use.edge for use in uses]
        grads = _grads(each.sum(), edges)
        key = (samples == 1, *((self._names.get(id(use.of)), use.operation) for use in uses))
        layouts = self._layouts.get(key)
        if layouts is not None and all(
            layout is None or layout in SampleAxis.possible(use.shape, samples, use.axes)
            for use, layout in zip(uses, layouts, strict=True)
        ):
            return self._batch(samples, uses, grads, layouts), []
        draws = torch.Generator("cpu").manual_seed(0)
        weights = ((-2.0) ** (torch.randperm(samples, generator=draws) % 7 - 3)).to(each)
        weighted = _grads((each * weights).sum(), [*edges, *self.parameters.values()])
        fitting = [
            None if grad is None or other is None else _layouts(use, grad, other, weights)
            for use, grad, other in zip(uses, grads, weighted, strict=False)
        ]
        layouts = [found[0] if found else None for found in fitting]
        if all(found is not None and len(found) < 2 for found in fitting):
            self._layouts[key] = layouts
        batch = self._batch(samples, uses, grads, layouts)
        known = {id(use.of) for use in uses}
        unknown = {id(use.of) for use, found in zip(uses, fitting, strict=True) if found == []}
        wrong = self._off(batch, weights, dict(zip(self.parameters, weighted[len(edges) :], strict=True)))
        return batch, [
            name
            for name, each in self.parameters.items()
            if name in wrong or id(each) in unknown or (id(each) not in known and name not in batch.others)
        ]

    def _batch(
        self, samples: int, uses: list[Use], grads: Sequence[Tensor | None], layouts: list[SampleAxis | None]
    ) -> _Uses:
        found = _Uses(samples, [], {})
        for use, grad, layout in zip(uses, grads, layouts, strict=True):
            if grad is None or layout is None:
                continue
            name = self._names.get(id(use.of))
            if name is not None:
                found.uses.append((use, grad, layout))
                continue
            shape = use.of.shape or (1,)
            its = use.of.new_zeros(samples, *shape).detach()
            use.adds(its, slice(0, shape[0]), grad, layout)
            through = _grads(use.of, [*self.parameters.values()], its.view(samples, *use.of.shape))
            for name, each in zip(self.parameters, through, strict=True):
                if each is not None:
                    found.others[name] = found.others[name] + each if name in found.others else each
        return found

    def _off(self, batch: _Uses, weights: Tensor, expected: dict[str, Tensor | None]) -> set[str]:
        """Return the parameters whose weighted gradients do not add up to what they must."""
        off, long = dict.fromkeys(self.parameters, 0.0), dict.fromkeys(self.parameters, 0.0)
        for name, rows, gradients in self._rows(batch):
            each = gradients.flatten(1).double() * weights.double()[:, None]
            whole = expected[name]
            whole = torch.zeros_like(self.parameters[name]) if whole is None else whole
            part = whole.view(-1, *gradients.shape[2:])[rows].flatten().double()
            off[name] += float((each.sum(0) - part).square().sum())
            long[name] += float(each.square().sum() + part.square().sum())
        same = _ROUGHLY if any(grad.dtype.itemsize < 4 for _, grad, _ in batch.uses) else _SAME
        least = _NOTHING * max(long.values()) ** 0.5
        return {name for name in off if off[name] ** 0.5 > max(least, same * long[name] ** 0.5)}


class _Uses(NamedTuple):
    """Samples, the uses that reach their losses, and gradients by what is computed of parameters, by name."""

    samples: int
    uses: list[tuple[Use, Tensor, SampleAxis]]
    others: dict[str, Tensor]


def _layouts(use: Use, grad: Tensor, weighted: Tensor, weights: Tensor) -> list[SampleAxis]:
    """Return where the samples may be: each one's gradient is multiplied by its weight there."""
    found = list[SampleAxis]()
    for layout in SampleAxis.possible(use.shape, len(weights), use.axes):
        before, after = (layout.split(each, len(weights)).flatten(1).float() for each in (grad, weighted))
        if (after - before * weights[:, None]).norm() <= _SAME * after.norm():
            found.append(layout)
    return found


def _grads(of: Tensor, inputs: Sequence[Any], given: Tensor | None = None) -> list[Tensor | None]:
    """Return gradients at tensors or edges, None where there are none; of several if several are given."""
    if not inputs:
        return []
    several = given is not None
    return [*torch.autograd.grad(of, inputs, given, True, is_grads_batched=several, allow_unused=True)]


_BLOCK_ROWS = 2048
_WORD_BITS = 64
_SIGNS_OF_BYTES = 2.0 * (torch.arange(256).unsqueeze(1) >> torch.arange(8) & 1) - 1


def projected(parts: Iterable[Tensor], length: int, dimensions: int, seed: int) -> Tensor:
    """Return the parts of vectors, joined and multiplied by a random matrix of +-1, by the root of ``dimensions``.

    Products of pairs change by a relative error of about ``sqrt(2 / dimensions)``. Vectors that are no longer than
    ``dimensions`` are joined only. Each part has shape ``(n, *any)``, the result ``(n, min(length, dimensions))``.
    Read one at a time, parts may share memory; where they are cut does not matter. One seed, one matrix.

    Source: Johnson-Lindenstrauss with signs (Achlioptas, 2003), as in LESS (2402.04333) and TRAK (2303.14186).
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    places = _BLOCK_ROWS * -(-dimensions // _WORD_BITS) * 8 if length > dimensions else 0
    kept = torch.empty(places, 8, dtype=_SIGNS_OF_BYTES.dtype)
    found: Tensor | None = None
    done = 0
    for part in parts:
        rows = part.flatten(1)
        if found is None:
            found = rows.new_zeros(len(rows), min(length, dimensions))
        if length <= dimensions:
            found[:, done : done + rows.shape[1]] = rows
        else:
            for some in cast("tuple[Tensor, ...]", rows.split(_BLOCK_ROWS, 1)):
                found.addmm_(some, _signs(some.shape[1], dimensions, generator, kept).to(some))
        done += rows.shape[1]
    assert found is not None and done == length
    return found if length <= dimensions else found / dimensions**0.5


def _signs(rows: int, columns: int, generator: torch.Generator, kept: Tensor) -> Tensor:
    """Draw a matrix of +-1, in ``kept``: the bits of random words, eight at a time from a table."""
    words = torch.randint(-(2**63), 2**63 - 1, (rows, -(-columns // _WORD_BITS)), generator=generator)
    each = words.view(torch.uint8).flatten().int()
    signs = torch.index_select(_SIGNS_OF_BYTES, 0, each, out=kept[: len(each)])
    return signs.view(rows, -1)[:, :columns]


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
