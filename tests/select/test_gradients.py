"""Gradients of single samples are those that one backward pass a sample gives; projections keep products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.select.tasks import SAMPLES, images, texts
from torch import Tensor, nn

from penstock.errors import BadSetting
from penstock.select import gradients
from penstock.select.gradients import SampleGradients, last_linear, projected, sketched_gradients
from penstock.select.task import Batch

Losses = Callable[[slice], Tensor]
"""Losses of some of the samples."""


def taken(model: nn.Module, losses: Losses, samples: int) -> dict[str, Tensor]:
    """The gradients of all rows of each parameter, which come one after another."""
    gradients = SampleGradients(model, lambda: losses(slice(samples)), samples)
    blocks = [
        block._replace(gradients=block.gradients.clone())
        for block in gradients.by_rows(lambda: losses(slice(samples)), samples)
    ]
    for name, parameter in gradients.parameters.items():
        rows = [row for block in blocks if block.parameter == name for row in range(10**6)[block.rows]]
        assert rows == [*range(len(parameter) if parameter.dim() else 1)]
    assert [*dict.fromkeys(block.parameter for block in blocks)] == [*gradients.parameters]
    trained = {name for name, each in model.named_parameters() if each.requires_grad}
    assert {*gradients.left_out} | {*gradients.parameters} == trained
    return {
        name: torch.cat([one.gradients for one in blocks if one.parameter == name], 1).view(-1, *each.shape)
        for name, each in gradients.parameters.items()
    }


def one_by_one(model: nn.Module, losses: Losses, samples: int) -> dict[str, Tensor]:
    """The plain way: a batch of one sample, a backward pass, the gradient of each parameter."""
    found: dict[str, list[Tensor]] = {}
    for i in range(samples):
        model.zero_grad()
        losses(slice(i, i + 1)).sum().backward()
        for name, each in model.named_parameters():
            if each.requires_grad:
                gradient = torch.zeros_like(each) if each.grad is None else each.grad.clone()
                found.setdefault(name, []).append(gradient)
    return {name: torch.stack(each) for name, each in found.items()}


def check(model: nn.Module, losses: Losses, samples: int, left_out: Sequence[str] = ()) -> None:
    """Compare all but what is left out, to 1e-5 of each parameter's gradient."""
    found, plain = taken(model, losses, samples), one_by_one(model, losses, samples)
    assert sorted(set(plain) - set(found)) == sorted(left_out)
    whole = float(torch.stack([each.norm() for each in plain.values()]).norm())
    for name, each in found.items():
        error = float((each - plain[name]).norm())
        assert error <= 1e-5 * float(plain[name].norm()) + 1e-6 * whole, name


@pytest.mark.parametrize("make", [images, texts], ids=["convolutions", "positions, and a layer used twice"])
@pytest.mark.parametrize("block_bytes", [8, 3000, 8 << 20])
def test_they_are_those_of_single_samples(make: Any, block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.select.gradients._MEMORY_BYTES", block_bytes)
    task = make()
    torch.manual_seed(1)
    model = task.make_model().eval()

    def losses(some: slice) -> Tensor:
        (batch,) = task.batches(ids=np.arange(SAMPLES)[some])
        return task.losses(model, batch)

    check(model, losses, SAMPLES)


N = 6


class Transformer(nn.Module):
    """Attention of torch's, of its own inputs and of others, with samples on the first axis or the second."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.positions = nn.Embedding(9, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=batch_first)
        self.cross = nn.MultiheadAttention(8, 2, batch_first=batch_first, kdim=8, vdim=4)
        self.out = nn.Linear(8, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = inputs + self.positions(torch.arange(inputs.shape[1]))
        if not self.batch_first:
            hidden = hidden.transpose(0, 1)
        hidden = self.layer(hidden)
        hidden = hidden + self.cross(hidden, 2 * hidden, hidden[..., :4])[0]
        return self.out(hidden if self.batch_first else hidden.transpose(0, 1)).mean(1)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("length", [1, 5, N, 2 * N - 3])
def test_attention_whatever_axis_its_samples_are_on(batch_first: bool, length: int) -> None:
    torch.manual_seed(3)
    model = Transformer(batch_first=batch_first).eval()
    inputs = torch.randn(N, length, 8)
    check(model, lambda some: model(inputs[some]).square().sum(1), N)


def test_lengths_change_from_batch_to_batch() -> None:
    torch.manual_seed(3)
    model = Transformer(batch_first=False).eval()
    texts = [torch.randn(n, length, 8) for n, length in ((6, 6), (6, 4), (4, 6), (1, 6), (3, 1), (2, 8))]
    gradients = SampleGradients(model, lambda: model(texts[0]).square().sum(1), 6)
    for inputs in texts:
        found = {
            each.parameter: each.gradients.clone()
            for each in gradients.by_rows(lambda inputs=inputs: model(inputs).square().sum(1), len(inputs))
        }
        plain = one_by_one(model, lambda some, inputs=inputs: model(inputs[some]).square().sum(1), len(inputs))
        for name, each in found.items():
            torch.testing.assert_close(each, plain[name], rtol=1e-4, atol=1e-5)


class Conv1D(nn.Module):
    """As transformers' GPT-2 has it."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, inputs.view(-1, inputs.size(-1)), self.weight)
        return flat.view(*inputs.shape[:-1], -1)


class Odds(nn.Module):
    """Uses of parameters that are no calls of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4, padding_idx=1)
        self.norm = nn.RMSNorm(4)
        self.first = Conv1D(4, 4)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.uncalled, self.keywords = nn.Linear(4, 4), nn.Linear(4, 4)
        self.scale, self.shift = nn.Parameter(torch.randn(4)), nn.Parameter(torch.tensor(0.3))
        self.bare = nn.Parameter(torch.randn(4, 4))
        self.lstm = nn.LSTM(4, 4, batch_first=True)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.normed(input=self.first(self.norm(self.words(words)))) * self.scale + self.shift
        hidden = torch.tanh(nn.functional.linear(hidden, self.uncalled.weight) @ self.bare.T)
        hidden = nn.functional.linear(input=hidden, weight=self.keywords.weight, bias=self.keywords.bias)
        hidden, _ = self.lstm(hidden)
        return nn.functional.linear(hidden, self.words.weight)  # tied


def test_parameters_that_no_layer_s_call_uses() -> None:
    torch.manual_seed(4)
    model = Odds().eval()
    words = torch.randint(0, 7, (N, 5))

    def losses(some: slice) -> Tensor:
        loss = nn.functional.cross_entropy(model(words[some]).transpose(1, 2), words[some], reduction="none")
        return loss.sum(1)

    lstm = [name for name, _ in model.named_parameters() if name.startswith("lstm")]
    check(model, losses, N, left_out=[*lstm, "uncalled.bias"])
    said = SampleGradients(model, lambda: losses(slice(N)), N).summary()
    assert said == (
        "compares 133 of 297 parameters; left out: uncalled.bias, lstm.weight_ih_l0, lstm.weight_hh_l0, "
        "lstm.bias_ih_l0, lstm.bias_hh_l0"
    )


@pytest.mark.parametrize("block_bytes", [8, 600, 8 << 20])  # rows of a part of a group, of a few groups, all
def test_an_autoencoder_and_its_norms(block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.select.gradients._MEMORY_BYTES", block_bytes)
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding="same", padding_mode="reflect"),
        nn.GroupNorm(2, 4),
        nn.Conv2d(4, 4, (3, 2), padding="valid", dilation=(1, 2)),
        nn.Conv2d(4, 6, 3, groups=2),
        nn.InstanceNorm2d(6, affine=True),
        nn.ConvTranspose2d(6, 3, 2, 2),
        nn.Flatten(2),
        nn.Conv1d(3, 2, 3),
        nn.LayerNorm(62),
    ).eval()
    inputs = torch.randn(N, 3, 16, 16)
    shape = model(inputs).shape
    check(model, lambda some: model(inputs[some]).flatten(1).pow(3).sum(1), N, ["8.weight", "8.bias"])
    assert shape == (N, 2, 62)


class Block(nn.Module):
    """As a ResNet's: two convolutions with norms, beside what was given or a convolution of it."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.Conv2d(outputs, outputs, 3, 1, 1),
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))
        self.beside = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu_(self.norms[0](self.first(inputs)))
        hidden = self.norms[1](self.second(hidden))
        hidden += self.beside(inputs)
        return torch.relu_(hidden)


def test_a_resnet() -> None:
    torch.manual_seed(8)
    stem = nn.Conv2d(3, 4, 7, 2, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
    blocks = Block(4, 4, 1), Block(4, 8, 2), Block(8, 8, 1)
    model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    inputs, labels = torch.randn(N, 3, 32, 32), torch.arange(N) % 5
    model(inputs)  # so that norms have running statistics of their own
    model.eval()
    check(model, lambda some: nn.functional.cross_entropy(model(inputs[some]), labels[some], reduction="none"), N)


def test_what_mixes_samples_is_left_out_or_refused() -> None:
    torch.manual_seed(6)
    inputs = torch.randn(N, 4)

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = self.before(inputs)
            return self.after(hidden * (1 + hidden.mean(0)))

    mixed = Mixed()
    gradients = SampleGradients(mixed, lambda: mixed(inputs).square().sum(1), N)
    assert gradients.summary() == "compares 10 of 30 parameters; left out: before.weight, before.bias"
    linear = nn.Linear(4, 4)
    with pytest.raises(BadSetting, match=r"compares 0 of 20 .* left out: weight, bias\. A sample's loss depends"):
        SampleGradients(linear, lambda: (linear(inputs) @ linear(inputs).T).logsumexp(1), N)
    normed = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False)).eval()
    with pytest.raises(BadSetting, match="a batch normalisation without running statistics"):
        SampleGradients(normed, lambda: normed(inputs).square().sum(1), N)


def test_a_parameter_that_is_used_otherwise_later_is_refused() -> None:
    model = nn.Linear(4, 4)
    inputs = torch.randn(N, 4)
    gradients = SampleGradients(model, lambda: model(inputs).square().sum(1), N)
    with pytest.raises(BadSetting, match="are known for weight in some batches only"):
        list(gradients.by_rows(lambda: torch.einsum("ni,oi->no", inputs, model.weight).square().sum(1), N))


PAIRS = [st.tuples(st.integers(*limits), st.integers(*limits)) for limits in ((1, 4), (1, 3), (0, 2), (1, 2))]


@given(channels=st.integers(1, 3), shape=st.tuples(*PAIRS))
@settings(max_examples=examples(25))
def test_convolutions_of_any_kernel_stride_padding_and_dilation(channels: int, shape: tuple[tuple[int, int], ...]):
    kernel, stride, padding, dilation = shape
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, channels, kernel, stride, padding, dilation))
    inputs = torch.randn(3, 2, 9, 8)
    check(model, lambda some: model(inputs[some]).square().sum((1, 2, 3)), 3)


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
    check(
        model,
        lambda some: nn.functional.cross_entropy(model(inputs[some]), labels[some], reduction="none"),
        9,
        ("other.weight", "other.bias") if kind == "in place" else (),
    )
    with last_linear(model) as given:
        model(inputs)
    assert given().given.shape == (9, 6)


def test_in_mixed_precision_they_have_the_type_of_the_weights() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)).eval()
    inputs, labels = torch.randn(9, 1, 3, 3), torch.arange(9) % 3

    def losses(some: slice, *, mixed: bool) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            return nn.functional.cross_entropy(model(inputs[some]).float(), labels[some], reduction="none")

    exact, found = (taken(model, partial(losses, mixed=mixed), 9) for mixed in (False, True))
    assert [*found] == [*exact]
    for name, gradient in found.items():
        assert gradient.dtype == torch.float32
        torch.testing.assert_close(gradient, exact[name], rtol=0.05, atol=0.05)


def test_what_a_layer_was_given_is_not_changed_behind_it() -> None:
    model = Odd("changed").eval()
    with pytest.raises(BadSetting, match=r"what body\.weight is applied to is changed in place behind it"):
        taken(model, lambda _: model(torch.randn(9, 4)).sum(1), 9)


def test_numbers_of_twice_the_length_are_projected_alike() -> None:
    rows = torch.randn(3, 500)
    long = projected([rows.double()], 500, 64, 1)
    torch.testing.assert_close(long.float(), projected([rows], 500, 64, 1), rtol=1e-4, atol=1e-4)


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(BadSetting, match="Sequential has no parameter that is trained"):
        SampleGradients(nn.Sequential(nn.ReLU()), lambda: torch.zeros(3), 3)


def test_layers_may_be_called_by_keyword() -> None:
    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.inner(input=inputs)

    model, inputs = Keyword(), torch.randn(N, 4)
    assert sketched_gradients(model, lambda: model(inputs).square().sum(1), 128, 0).shape == (N, 12)
    with last_linear(model) as given:
        model(inputs)
    assert torch.equal(given().given, inputs)


def test_sketches_of_positions_keep_products() -> None:
    task = texts()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Embedding(11, 400), nn.Linear(400, 300), nn.ReLU(), nn.Linear(300, 200)).eval()

    def losses(batch: Batch) -> torch.Tensor:
        return task.losses(model, batch)

    (batch,) = task.batches()
    exact = taken(model, lambda _: losses(batch), SAMPLES)["3.weight"].flatten(1)
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
    some = ([part[:9] for part in parts], [part[9:] for part in parts])
    halves = torch.cat([projected(each, 5500, 2048, 7) for each in some])
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


def test_all_blocks_of_signs_lie_in_one_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    own, seen = gradients._signs, list[torch.UntypedStorage]()

    def signs(*of: Any) -> Tensor:
        drawn = own(*of)
        seen.append(drawn.untyped_storage())
        return drawn

    monkeypatch.setattr(gradients, "_signs", signs)
    projected([torch.ones(1, 7000), torch.ones(1, 1000)], 8000, 64, seed=1)
    assert len(seen) == 5 and len({each.data_ptr() for each in seen}) == 1
