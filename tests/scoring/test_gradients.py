"""Gradients of single samples are those that one backward pass a sample gives; projections keep products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.scoring.tasks import SAMPLES, convolutional, images, texts
from torch import nn

from penstock import BadSetting
from penstock.scoring.gradients import Layer, SampleGradients, last_linear, layers_of, sketched_gradients
from penstock.scoring.lora import LowRank, adapted
from penstock.scoring.projection import projected
from penstock.scoring.task import Batch, Task


def joined(layers: dict[str, Layer], losses: Callable[[], torch.Tensor]) -> dict[str, torch.Tensor]:
    """The gradients of all rows of each layer, which come one after another."""
    blocks = [
        block._replace(gradients=block.gradients.clone()) for block in SampleGradients(layers).by_rows(losses)
    ]
    for name, layer in layers.items():
        rows = [row for block in blocks if block.layer == name for row in range(len(layer.weight))[block.rows]]
        assert rows == [*range(len(layer.weight))]
    assert [*dict.fromkeys(block.layer for block in blocks)] == [*layers]
    return {name: torch.cat([each.gradients for each in blocks if each.layer == name], 1) for name in layers}


def one_by_one(task: Task, model: nn.Module, names: list[str]) -> dict[str, torch.Tensor]:
    """The plain way: a batch of one sample, a backward pass, the gradient of each weight."""
    found: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    for id in range(task.samples):
        (batch,) = task.batches(ids=np.array([id]))
        model.zero_grad()
        task.losses(model, batch).sum().backward()
        for name in names:
            weight: Any = model.get_submodule(name).weight
            found[name].append(weight.grad.clone())
    return {name: torch.stack(each) for name, each in found.items()}


@pytest.mark.parametrize("make", [images, texts], ids=["convolutions", "positions, and a layer used twice"])
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("block_bytes", [8, 3000, 8 << 20])
def test_they_are_those_of_single_samples(
    make: Any, rank: int, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.scoring.gradients._MEMORY_BYTES", block_bytes)
    task = make()
    torch.manual_seed(1)
    model = task.make_model().eval()
    if rank:
        adapted(model, rank)
        for module in model.modules():
            if isinstance(module, LowRank):
                nn.init.normal_(module.up.weight)
    layers = layers_of(model)
    assert len(layers) == {(images, 0): 3, (images, 2): 2, (texts, 0): 2, (texts, 2): 4}[make, rank]
    (batch,) = task.batches()
    assert len(batch.ids) == SAMPLES
    found = joined(layers, lambda: task.losses(model, batch))
    plain = one_by_one(task, model, [*layers])
    for name, gradient in found.items():
        assert gradient.shape == plain[name].shape
        torch.testing.assert_close(gradient, plain[name], rtol=1e-4, atol=1e-6)


PAIRS = [st.tuples(st.integers(*limits), st.integers(*limits)) for limits in ((1, 4), (1, 3), (0, 2), (1, 2))]


@given(channels=st.integers(1, 3), shape=st.tuples(*PAIRS))
@settings(max_examples=examples(25))
def test_convolutions_of_any_kernel_stride_padding_and_dilation(
    channels: int, shape: tuple[tuple[int, int], ...]
) -> None:
    kernel, stride, padding, dilation = shape
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, channels, kernel, stride, padding, dilation))
    inputs = torch.randn(3, 2, 9, 8)
    found = joined(layers_of(model), lambda: model(inputs).square().sum((1, 2, 3)))["0"]
    for each, gradient in zip(inputs, found, strict=True):
        model.zero_grad()
        model(each[None]).square().sum().backward()
        torch.testing.assert_close(gradient, model[0].weight.grad, rtol=1e-4, atol=1e-4)


def test_samples_stand_along_the_first_axis_and_empty_layers_have_no_gradients() -> None:
    model = nn.Sequential(nn.Flatten(0, 1), nn.Linear(4, 2), nn.Linear(2, 1))
    model[2].weight = nn.Parameter(torch.empty(0, 2))
    layers = layers_of(model)
    assert [*layers] == ["1"]
    with pytest.raises(
        BadSetting, match=r"layer 1 is given shape \(6, 4\) for 3 samples: .* along the first axis"
    ):
        joined(layers, lambda: model[:2](torch.randn(3, 2, 4)).view(3, 4).sum(1))


class Odd(nn.Module):
    """What models do: an activation in place, a head that does not count, heads in any order, adding in place."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.head = nn.Linear(6, 3)
        self.body = nn.Linear(4, 6)
        self.other = nn.Linear(6, 3)
        self.in_place = nn.ReLU(inplace=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.in_place(self.body(inputs))
        if self.kind == "does not count":
            self.other(hidden)
        if self.kind == "in another order":
            return self.other(hidden) + self.head(hidden)
        logits = self.head(hidden)
        if self.kind == "changed":
            inputs += 1
        return logits


@pytest.mark.parametrize("kind", ["in place", "does not count", "in another order"])
def test_they_are_exact_for_what_models_do(kind: str) -> None:
    torch.manual_seed(2)
    model = Odd(kind).eval()
    inputs, labels = torch.randn(9, 4), torch.arange(9) % 3
    found = joined(layers_of(model), lambda: nn.functional.cross_entropy(model(inputs), labels, reduction="none"))
    assert [*found] == ["head", "body", "other"]
    for id in range(9):
        model.zero_grad()
        nn.functional.cross_entropy(model(inputs[id : id + 1]), labels[id : id + 1]).backward()
        for name, gradients in found.items():
            expected: Any = model.get_submodule(name).weight
            expected = torch.zeros_like(expected) if expected.grad is None else expected.grad
            torch.testing.assert_close(gradients[id], expected, rtol=1e-4, atol=1e-6)
    with last_linear(model) as given:
        model(inputs)
    assert given().shape == (9, 6)


def test_in_mixed_precision_they_have_the_type_of_the_weights() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)).eval()
    inputs, labels = torch.randn(9, 1, 3, 3), torch.arange(9) % 3

    def losses(*, mixed: bool) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            return nn.functional.cross_entropy(model(inputs).float(), labels, reduction="none")

    exact, found = (joined(layers_of(model), lambda mixed=mixed: losses(mixed=mixed)) for mixed in (False, True))
    for name, gradient in found.items():
        assert gradient.dtype == torch.float32
        torch.testing.assert_close(gradient, exact[name], rtol=0.05, atol=0.05)


def test_what_a_layer_was_given_is_not_changed_behind_it() -> None:
    model = Odd("changed").eval()
    with pytest.raises(BadSetting, match="what layer body was given is changed in place behind it"):
        joined(layers_of(model), lambda: model(torch.randn(9, 4)).sum(1))


def test_convolutions_that_are_left_out_are_named() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 2, 3, padding="same"), nn.Linear(3, 3))
    with pytest.warns(UserWarning, match="gradients of 1 layers are compared, and those of 0, 1 are left out"):
        assert [*layers_of(model)] == ["2"]


def test_adapters_do_not_stand_where_nobody_calls() -> None:
    with pytest.raises(BadSetting, match=r"lora_rank: nn\.TransformerEncoderLayer uses weights"):
        adapted(nn.TransformerEncoderLayer(8, 2), 2)
    attention = adapted(nn.Sequential(nn.MultiheadAttention(8, 2)), 2)
    assert not any(isinstance(module, LowRank) for module in attention.modules())


def test_numbers_of_twice_the_length_are_projected_alike() -> None:
    rows = torch.randn(3, 500)
    long = projected([rows.double()], 500, 64, 1)
    torch.testing.assert_close(long.float(), projected([rows], 500, 64, 1), rtol=1e-4, atol=1e-4)


def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(BadSetting, match="Sequential has no linear layer and no convolution"):
        layers_of(nn.Sequential(nn.ReLU()))


def test_sketches_of_short_factors_are_the_gradient_itself() -> None:
    task = images()
    model = convolutional().eval()
    (batch,) = task.batches()
    found = sketched_gradients(model, lambda: task.losses(model, batch), 128, 0)
    last = list(layers_of(model))[-1]
    torch.testing.assert_close(found, one_by_one(task, model, [last])[last].flatten(1), rtol=1e-4, atol=1e-6)


def test_sketches_of_positions_keep_products() -> None:
    task = texts()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Embedding(11, 400), nn.Linear(400, 300), nn.ReLU(), nn.Linear(300, 200)).eval()

    def losses(batch: Batch) -> torch.Tensor:
        return task.losses(model, batch)

    (batch,) = task.batches()
    exact = joined({"3": layers_of(model)["3"]}, lambda: losses(batch))["3"].flatten(1)
    sketched = sketched_gradients(model, lambda: losses(batch), 128, 0)
    assert sketched.shape == (SAMPLES, 128 * 128)
    assert relative_error(sketched, exact) < 0.2


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Of the products of all pairs, in proportion to the lengths."""
    lengths = exact.norm(dim=1)
    return float(((found @ found.T - exact @ exact.T) / torch.outer(lengths, lengths)).abs().max())


def test_a_projection_is_one_matrix_whatever_the_batch_and_keeps_products() -> None:
    torch.manual_seed(0)
    parts = [torch.randn(20, 30, 50), torch.randn(20, 4000)]
    whole = projected(parts, 5500, 2048, seed=7)
    assert whole.shape == (20, 2048)
    halves = torch.cat(
        [projected([part[rows] for part in parts], 5500, 2048, 7) for rows in (slice(0, 9), slice(9, 20))]
    )
    torch.testing.assert_close(whole, halves, rtol=1e-4, atol=1e-3)
    cut = [parts[0][:, :1], parts[0][:, 1:], *parts[1].split(777, 1)]
    torch.testing.assert_close(whole, projected(iter(cut), 5500, 2048, 7), rtol=1e-4, atol=1e-3)
    exact = torch.cat([part.flatten(1) for part in parts], 1)
    assert relative_error(whole, exact) < 5 * (2 / 2048) ** 0.5
    assert not torch.allclose(whole, projected(parts, 5500, 2048, seed=8))
    assert torch.equal(projected(parts, 5500, 8192, seed=7), exact)


def test_signs_are_even_and_independent() -> None:
    """The matrix, seen through unit vectors: +-1, rows and columns without correlation."""
    rows, length = 300, 256
    matrix = projected([torch.eye(rows)], rows, length, seed=1) * length**0.5
    assert set(matrix.unique().tolist()) == {-1.0, 1.0}
    assert abs(float(matrix.mean())) < 0.02
    for each in (matrix @ matrix.T / length, matrix.T @ matrix / rows):
        assert float((each - torch.eye(len(each))).abs().max()) < 0.4
