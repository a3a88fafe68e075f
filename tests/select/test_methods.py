"""Each method's scores are those of its paper's formula, written plainly, on 50 samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.select.tasks import SAMPLES, Images, Texts, convolutional, images, small, texts
from torch import nn
from torch.utils.data import DataLoader

from penstock.errors import BadSetting
from penstock.select.choices import diverse
from penstock.select.embedding_methods import nearest, pooled
from penstock.select.scoring import METHODS, score
from penstock.select.task import Batch, Task
from penstock.select.training import digest_of, read_checkpoint, train
from penstock.testing.scorer import ScorerContract


class Uncalled(nn.Module):
    """Has a linear layer whose weight it uses itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(128, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1) @ self.inner.weight.T


def large() -> nn.Module:
    return nn.Linear(9999, 9)


def unsteady() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(128, track_running_stats=False), nn.Linear(128, 3))


def saved(tmp_path: Any, task: Task, *, epochs: int = 2, make: Any = None) -> list[str]:
    """Train a model plainly, and save it with its optimizer after each epoch."""
    torch.manual_seed(5)
    model = (make or task.make_model)()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return [train_on(tmp_path / f"{epoch}.pt", task, model, optimizer, epoch) for epoch in range(epochs)]


def train_on(path: Any, task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int = 0) -> str:
    """Train a model for an epoch, and save it with its optimizer."""
    model.train()
    for batch in task.batches(shuffle_seed=epoch):
        optimizer.zero_grad()
        task.losses(model, batch).mean().backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return str(path)


def loaded(task: Task, path: str, make: Any = None) -> tuple[nn.Module, dict[str, Any]]:
    content = torch.load(path, weights_only=True)
    model = (make or task.make_model)()
    model.load_state_dict(content["model"])
    return model.eval(), content["optimizer"]


def sample(task: Task, id: int) -> Any:
    (batch,) = task.batches(ids=np.array([id]))
    return batch


def test_el2n(tmp_path: Any) -> None:
    task = images(checkpoints=(paths := saved(tmp_path, images())))
    found = score(task, "el2n").values[:, 0]
    for id in range(SAMPLES):
        lengths = []
        for path in paths:
            model, _ = loaded(task, path)
            image, label = task.data[id]
            probabilities = torch.softmax(model(image[None])[0], 0).tolist()
            lengths.append(sum((p - (i == label)) ** 2 for i, p in enumerate(probabilities)) ** 0.5)
        assert found[id] == pytest.approx(sum(lengths) / len(lengths), rel=1e-4)


def plain_gradient(task: Task, model: nn.Module, batch: Any, of: str = "") -> dict[str, torch.Tensor]:
    """The gradient of what is trained, or of parameters with such names, by one backward pass."""
    model.zero_grad()
    task.losses(model, batch).sum().backward()
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and of in name
    }


@pytest.mark.parametrize("make", [images, texts])
@pytest.mark.parametrize("adam", [True, False])
def test_less(tmp_path: Any, make: Any, adam: bool) -> None:
    task = make()
    paths = saved(tmp_path, task)
    task = make(checkpoints=paths)
    found = score(task, "less", adam=adam).values[:, 0]
    expected = np.zeros(SAMPLES)
    for path in paths:
        model, optimizer = loaded(task, path)
        names = [name for name, _ in model.named_parameters()]
        wanted = torch.stack([of_target(task, model, i) for i in range(9)]).mean(0)
        for id in range(SAMPLES):
            steps = []
            for name, gradient in plain_gradient(task, model, sample(task, id)).items():
                state = optimizer["state"][names.index(name)]
                t = int(state["step"]) + 1
                m = (0.9 * state["exp_avg"] + 0.1 * gradient) / (1 - 0.9**t)
                v = (0.999 * state["exp_avg_sq"] + 0.001 * gradient * gradient) / (1 - 0.999**t)
                steps.append((m / (v.sqrt() + 1e-8) if adam else gradient).flatten())
            cosine = torch.nn.functional.cosine_similarity(torch.cat(steps), wanted, dim=0)
            expected[id] += 1e-2 * float(cosine)
    assert np.allclose(found, expected, rtol=1e-3, atol=1e-5)


def of_target(task: Task, model: nn.Module, id: int, of: str = "") -> torch.Tensor:
    (batch,) = list(task.validation_batches(""))
    one = task.inputs(batch.content)[id : id + 1], task.labels(batch.content)[id : id + 1]
    gradients = plain_gradient(task, model, Batch(np.array([id]), one), of)
    return torch.cat([each.flatten() for each in gradients.values()])


class Mixing(nn.Module):
    """A frozen part that compares a batch's samples with each other, which gradients behind it cannot show."""

    def __init__(self, part: float) -> None:
        super().__init__()
        self.part, self.out = part, nn.Linear(128, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.out((images - self.part * images.mean(0)).flatten(1))


@pytest.mark.parametrize("part", [0.0, 0.5])
def test_that_a_sample_s_loss_depends_on_its_batch_is_said(part: float, capsys: pytest.CaptureFixture[str]):
    score(images(make_model=lambda: Mixing(part)), "less", epochs=1)
    said = " ".join(capsys.readouterr().err.split())
    assert "less compares 387 of 387 parameters" in said
    assert ("a sample's loss depends on the others of its batch" in said) == bool(part)


def test_less_in_few_dimensions_ranks_alike(tmp_path: Any) -> None:
    task = images(checkpoints=saved(tmp_path, images()))
    exact = score(task, "less").values[:, 0]
    few = score(task, "less", dimensions=128).values[:, 0]
    assert not np.array_equal(exact, few)
    assert np.corrcoef(exact, few)[0, 1] > 0.9


def test_sketch(tmp_path: Any) -> None:
    """The product of the last layer's gradients, by one backward pass a sample."""
    paths = saved(tmp_path, images(), make=small)
    task = images(make_proxy=small, checkpoints=paths[-1:])
    found = score(task, "sketch").values[:, 0]
    model, _ = loaded(task, paths[-1], small)
    wanted = torch.stack([of_target(task, model, i, "weight") for i in range(9)]).mean(0)
    for id in range(SAMPLES):
        (gradient,) = plain_gradient(task, model, sample(task, id), "weight").values()
        assert found[id] == pytest.approx(float(gradient.flatten() @ wanted), rel=1e-3, abs=1e-6)


class Different(Texts):
    """Texts without order, so that no two are alike."""

    def __getitem__(self, id: int) -> tuple[torch.Tensor, torch.Tensor]:
        words, labels = super().__getitem__(id)
        return torch.from_numpy(np.random.default_rng(id + len(self)).integers(0, 11, len(words))), labels


def rounds(cosines: np.ndarray) -> list[int]:
    """In which round each sample is taken, if each target sample in turn takes the nearest that is left."""
    taken: dict[int, int] = {}
    for turn in range(len(cosines)):
        each = cosines[:, turn % cosines.shape[1]]
        left = [id for id in range(len(cosines)) if id not in taken]
        taken[min(left, key=lambda id: (-each[id], id))] = turn // cosines.shape[1]
    return [taken[id] for id in range(len(cosines))]


@pytest.mark.parametrize(("make", "kind"), [(images, Images), (texts, Different)])
def test_rds(tmp_path: Any, make: Any, kind: Any) -> None:
    """Each of the target's samples takes, in turn, the nearest that is left; a plain loop over rounds."""
    task = make(data=kind(20), validation=kind(4, seed=1))
    paths = saved(tmp_path, task, epochs=1)
    task = make(data=task.data, validation=task.validation, checkpoints=paths)
    found = score(task, "rds", centred=False)
    model, _ = loaded(task, paths[0])
    kept: list[Any] = []
    [*model.modules()][-1].register_forward_pre_hook(lambda _, given: kept.append(given[0].detach()))

    def embedding(data: Any, id: int) -> np.ndarray:
        kept.clear()
        inputs, _ = data[id]
        model(inputs[None])
        hidden = kept[0][0].numpy()
        if hidden.ndim == 2:
            hidden = sum((i + 1) * row for i, row in enumerate(hidden)) / sum(range(1, len(hidden) + 1))
        return hidden / np.linalg.norm(hidden)

    samples = np.stack([embedding(task.data, id) for id in range(20)])
    cosines = samples @ np.stack([embedding(task.validation, id) for id in range(4)]).T
    assert np.diff(np.sort(cosines, axis=0), axis=0).min() > 2e-5, "a tie: what follows hangs on the last bits"
    found_in = np.ceil(-found.values[:, 0]).astype(int)
    assert found_in.tolist() == rounds(cosines)
    nearness = (found.values[:, 0] + found_in) / 0.49 - 1
    assert np.abs(nearness[:, None] - cosines).min(1).max() < 1e-4
    assert np.bincount(found_in).tolist() == [4] * 5  # none is taken twice


def test_samples_that_differ_in_their_last_bits_are_taken_by_their_ids() -> None:
    """On another processor the last bits are others, and the choice is to be the same."""
    wanted = np.array([[1, 0], [1, 0], [0, 1]], "f4")
    plain = np.array([[0.6, 0.8], [0.8, 0.6]], "f4").repeat(10, 0)
    for seed in range(5):
        noise = np.random.default_rng(seed).uniform(-1e-7, 1e-7, plain.shape)
        found = nearest((plain + noise).astype("f4"), wanted, centred=False)
        assert np.array_equal(found, nearest(plain, wanted, centred=False))
        assert np.flatnonzero(found > 0).tolist() == [0, 10, 11]
        chosen = diverse(np.concatenate([plain + noise, [[-1, 0]]]), 3 / 21)
        assert np.array_equal(chosen.ids, diverse(np.concatenate([plain, [[-1, 0]]]), 3 / 21).ids)


@pytest.mark.parametrize("method", ["rds", "diverse", "el2n"])
def test_a_model_that_is_made_trained_is_not_trained_again(method: str) -> None:
    made: list[nn.Module] = []

    def make() -> nn.Module:
        made.append(convolutional())
        return made[-1]

    scores = score(images(make_model=make), method, epochs=0, **({"models": 1} if method == "el2n" else {}))
    assert scores.header.checkpoint == digest_of(made[-1]) and np.unique(scores.values).size > 1


def test_several_targets_have_a_score_each() -> None:
    task = images(validation={"a": Images(5, seed=3), "b": Images(6, seed=4)}, make_proxy=small)
    for method in ("rds", "less", "sketch"):
        both = score(task, method, epochs=1)
        assert both.header.targets == ("a", "b") and both.values.shape == (SAMPLES, 2)
        alone = score(images(validation=Images(6, seed=4), make_proxy=small), method, epochs=1)
        assert np.allclose(both.values[:, 1], alone.values[:, 0], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("task", "method", "settings", "said"),
    [
        (images(validation=None), "less", {}, "validation: this method compares with samples"),
        (images(validation={"a": Images(0)}), "rds", {}, "validation 'a': no sample"),
        (images(), "sketch", {}, r"it needs a small model: Task\(make_proxy"),
        (images(make_proxy=convolutional), "sketch", {}, "has 423 parameters, of the model's 423: .*with 42 or"),
        (images(labels=lambda batch: batch[2]), "el2n", {}, "labels: a batch of list has none"),
        (images(loss=lambda outputs, labels: outputs.sum()), "el2n", {}, r"loss: shape \(\) for \d+ samples"),
        (texts(), "el2n", {"models": 1}, r"el2n: outputs of shape \(50, 6, 11\)"),
        (
            images(make_model=unsteady),
            "less",
            {},
            "without running statistics: a sample's loss depends on the others",
        ),
        (images(make_model=large, make_proxy=Uncalled), "sketch", {}, "calls none of its linear layers"),
        (images(), "best", {}, "there is no method 'best'; there are diverse, el2n, less, rds, sketch"),
        (images(), "less", {"rank": "2"}, "less has no setting rank; it has warm_up, epochs, dimensions, adam"),
        (images(), "less", {"epochs": "many"}, "less: epochs: expected `int`, got `str`"),
        (images(checkpoints=["nowhere.pt"]), "el2n", {}, "checkpoints: there is no file nowhere.pt"),
        (images(make_model=nn.Flatten), "rds", {}, "has no parameter that could"),
        (images(make_model=lambda: nn.Sequential(nn.Conv2d(2, 3, 8), nn.Flatten())), "rds", {}, "no linear layer"),
        (images(inputs=lambda batch: batch["image"]), "el2n", {}, "inputs: a batch of list has none"),
        (images(validation={1: Images(3)}), "rds", {}, "validation: the name 1 is a int, and no text"),
        (images(), "less", {"epochs": 0}, "less: epochs: expected `int` >= 1"),
        (images(), "rds", {"epochs": -1}, "rds: epochs: expected `int` >= 0"),
        (images(), "diverse", {"fraction": 0}, "diverse: fraction: expected `float` > 0"),
        (images(), "less", {"warm_up": 2}, "less: warm_up: expected `float` <= 1"),
    ],
)
def test_what_cannot_be_is_one_error_before_anything_is_kept(task: Task, method: str, settings: Any, said: str):
    with pytest.raises(BadSetting, match=said):
        score(task, method, **settings)


def test_checkpoints_are_paths(tmp_path: Any) -> None:
    (path,) = saved(tmp_path, images(), epochs=1)
    found = [score(images(checkpoints=[each]), "el2n").values for each in (path, Path(path))]
    assert np.array_equal(*found)
    states = [convolutional().state_dict()]
    kinds = {"str": path, "PosixPath": Path(path), "list_iterator": iter([path]), "OrderedDict": states}
    for said, given in kinds.items():
        with pytest.raises(BadSetting, match=f"checkpoints: a {said}; give a list with paths of files"):
            images(checkpoints=given)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": DataLoader(Images(), 4)}, "data: a DataLoader; give its data set, loader.dataset"),
        ({"validation": DataLoader(Images(), 4)}, "validation: a DataLoader; give its data set"),
        ({"validation": {"a": DataLoader(Images(), 4)}}, "validation: a DataLoader"),
        ({"make_model": nn.Linear(1, 1)}, "make_model: a Linear itself; give a function that makes one"),
        ({"device": "gpu7"}, "device='gpu7': "),
        ({"device": 1.5}, "device=1.5: "),
    ],
)
def test_a_task_that_cannot_be_is_refused_as_such(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadSetting, match=said):
        images(**changes)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said() -> None:
    with pytest.raises(BadSetting, match=r"device='cuda': torch .* finds no GPU here"):
        images(device="cuda")


def test_samples_without_labels_are_inputs_and_can_be_embedded() -> None:
    bare = [Images()[id][0] for id in range(SAMPLES)]
    scores = score(images(data=bare, validation=None), "diverse", epochs=0)
    assert np.array_equal(scores.values, score(images(validation=None), "diverse", epochs=0).values)
    with pytest.raises(BadSetting, match=r"labels: a batch of Tensor has none .*single arrays.*Task\(labels="):
        score(images(data=bare), "el2n")
    for label, kind in (("cat", "tuple"), ({"a": 1}, "dict")):
        with pytest.raises(BadSetting, match=f"labels: a {kind} that is no numbers"):
            score(images(data=[(image, label) for image in bare]), "el2n")


def test_a_scorer_that_is_none_is_refused() -> None:
    class Mine:
        name, version, direction = "mine", "1", "high"

        def score(self, task: Task, seed: int, progress: Any) -> Any:
            return np.zeros(task.samples)

    with pytest.raises(BadSetting, match=r"Mine is a class: give a Scorer made of it, Mine\(\)"):
        score(images(), Mine)  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match=r"mine: score\(\) returned a ndarray, and no select.Scored"):
        score(images(), Mine())  # type: ignore[arg-type]


def test_a_checkpoint_that_does_not_fit_says_where(tmp_path: Any) -> None:
    paths = saved(tmp_path, images(), make=small)
    said = f"checkpoints: {paths[0]}: a checkpoint does not fit the model Sequential: Missing"
    with pytest.raises(BadSetting, match=said):
        score(images(checkpoints=paths), "el2n")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({1: torch.ones(2)}, tmp_path / "numbers.pt")
    (tmp_path / "junk.pt").write_text("junk")
    for name, said in (
        ("numbers.pt", "does not fit"),
        ("list.pt", "holds a list, and no state_dict"),
        ("junk.pt", "as plain tensors"),
        ("", "holds no adapter_model"),
    ):
        with pytest.raises(BadSetting, match=f"checkpoints: .*{tmp_path / name}.*{said}"):
            score(images(checkpoints=[str(tmp_path / name)]), "el2n")
    torch.save(convolutional().state_dict(), tmp_path / "plain.pt")
    with pytest.raises(BadSetting, match=r"has no Adam state of 0\.weight"):
        score(images(checkpoints=[str(tmp_path / "plain.pt")]), "less")


def test_losses_that_are_no_numbers_are_not_kept() -> None:
    class Diverged(nn.Linear):
        def forward(self, inputs: Any) -> Any:
            return super().forward(inputs.flatten(1)) * torch.nan

    task = images(make_model=lambda: Diverged(128, 3))
    with pytest.raises(BadSetting, match="by el2n: 50 of 50 samples have none that is a number, the first is id"):
        score(task, "el2n", epochs=0)
    with pytest.raises(BadSetting, match=r"loss: 50 of a batch's 50 are .*: no sample of data holds .* diverged"):
        score(task, "el2n")


@pytest.mark.parametrize(
    ("method", "place"),
    [*((method, "data") for method in METHODS), *((method, "validation") for method in ("less", "rds", "sketch"))],
)
def test_one_sample_that_holds_no_number_is_named(method: str, place: str) -> None:
    """Batch normalisation spreads it over its batch, and a step over the model."""
    holed = Images(30, seed=2)
    holed.images[17, 0, 3, 3] = np.nan
    settings = {"warm_up": 1.0} if method == "less" else {}
    said = rf"(loss|embeddings): \d+ of a batch's \d+ are no finite numbers: id 17 of {place} hold NaN"
    with pytest.raises(BadSetting, match=said):
        score(images(**{place: holed}, make_proxy=small), method, **settings)


def test_training_reports_each_sample_and_leaves_the_process_s_random_numbers_alone() -> None:
    task = images()
    before = torch.get_rng_state()
    counts = np.zeros(SAMPLES, int)
    score(task, "el2n", models=1, epochs=1)
    assert torch.equal(before, torch.get_rng_state())
    train(task, convolutional(), epochs=2, seed=0, report=lambda batch, losses: np.add.at(counts, batch.ids, 1))
    assert (counts == 2).all()


def test_a_batch_of_one_is_left_out_of_training() -> None:
    """Batch normalisation cannot be trained on it."""
    assert score(images(batch_size=7), "el2n", models=1, epochs=1).values.std() > 0


def test_batches_of_one_are_trained_on_where_they_are_asked_for() -> None:
    trained = score(images(make_model=small, batch_size=1), "el2n", models=1, epochs=1)
    made = score(images(make_model=small), "el2n", models=1, epochs=0)
    assert trained.header.checkpoint != made.header.checkpoint


def with_optimizer(path: Any, groups: Any, model: nn.Module, **settings: Any) -> str:
    return train_on(path, images(), model, torch.optim.AdamW(groups, lr=1e-2, **settings))


def test_the_state_of_adam_is_that_of_its_parameter_whatever_its_groups(tmp_path: Any) -> None:
    def plain(named: Any) -> Any:
        return [each for _, each in named]

    def in_two(named: Any, of: Any = list) -> Any:
        flat = [each for each in named if each[1].dim() > 1], [each for each in named if each[1].dim() == 1]
        return [{"params": of(each)} for each in flat]

    def scored(name: str, groups: Any, **settings: Any) -> Any:
        """By a checkpoint whose optimizer was given these groups of the model's named parameters."""
        torch.manual_seed(3)
        model = convolutional()
        path = with_optimizer(tmp_path / name, groups([*model.named_parameters()]), model, **settings)
        return score(images(checkpoints=[path]), "less").values

    one = scored("one.pt", plain)
    assert np.allclose(one, scored("two.pt", in_two), rtol=1e-4, atol=1e-6)
    assert not np.allclose(one, scored("other.pt", plain, betas=(0.5, 0.9)), rtol=1e-2)
    with pytest.raises(BadSetting, match="has 2 groups of parameters, and does not name them"):
        scored("bare.pt", lambda named: in_two(named, plain))
    with pytest.raises(BadSetting, match="its parameters stand in another order"):
        scored("back.pt", lambda named: plain(named)[::-1])
    content = torch.load(tmp_path / "one.pt")
    content["optimizer"]["param_groups"][0]["lr"] = 0.0
    torch.save(content, tmp_path / "end.pt")
    with pytest.raises(BadSetting, match="was saved with a learning rate of 0"):
        score(images(checkpoints=[str(tmp_path / "end.pt")]), "less")


def test_each_parameter_counts_by_the_learning_rate_of_its_own_group(tmp_path: Any) -> None:
    """As the steps of an optimiser whose one group has each parameter's step multiplied by its rate."""

    def scored(name: str, rates: tuple[float, float], **settings: Any) -> Any:
        torch.manual_seed(3)
        model = convolutional()
        named = [*model.named_parameters()]
        with_optimizer(tmp_path / name, [{"params": named[:1]}, {"params": named[1:]}], model)
        content = torch.load(tmp_path / name)
        for group, rate in zip(content["optimizer"]["param_groups"], rates, strict=True):
            group["lr"] = rate
        torch.save(content, tmp_path / name)
        return score(images(checkpoints=[str(tmp_path / name)]), "less", **settings).values

    for adam in (True, False):
        both, first, second = (
            scored(f"{adam}-{i}.pt", rates, adam=adam)
            for i, rates in enumerate([(1e-2, 1e-2), (1e-2, 1e-9), (1e-9, 1e-2)])
        )
        assert not np.allclose(both / both.std(), first / first.std(), rtol=1e-2)
        assert not np.allclose(first / first.std(), second / second.std(), rtol=1e-2)
    model = convolutional()
    path = with_optimizer(tmp_path / "rates.pt", [{"params": [each]} for each in model.named_parameters()], model)
    content = torch.load(path)
    for i, group in enumerate(content["optimizer"]["param_groups"]):
        group["lr"] = (1 + i) * 1e-3
    torch.save(content, path)
    found = read_checkpoint(path, convolutional())
    rates = [found.relative[name] * found.learning_rate for name, _ in model.named_parameters()]
    assert np.allclose(rates, [(1 + i) * 1e-3 for i in range(len(rates))])


@pytest.mark.parametrize(
    ("prefix", "names"),
    [
        ("module.", ("model", "optimizer")),
        ("_orig_mod.", ("model", "optimizer")),
        ("module._orig_mod.", ("model_state_dict", "optimizer_state_dict")),
        ("", ("model_state_dict", "optimizer_state_dict")),
        ("model.", ("state_dict", "optimizer_states")),
        ("net._orig_mod.", ("state_dict", "optimizer_states")),
    ],
)
def test_checkpoints_of_wrapped_models_and_other_habits_are_read(tmp_path: Any, prefix: str, names: Any) -> None:
    model = convolutional()
    path = with_optimizer(tmp_path / "plain.pt", model.parameters(), model)
    plain, read = read_checkpoint(path, convolutional()), torch.load(path)
    state = {f"{prefix}{name}": each for name, each in read["model"].items()}
    optimizer = [read["optimizer"]] if names[1] == "optimizer_states" else read["optimizer"]
    torch.save({names[0]: state, names[1]: optimizer, "epoch": 1}, tmp_path / "other.pt")
    torch.save(state, tmp_path / "alone.pt")
    other, alone = (read_checkpoint(tmp_path / f"{name}.pt", convolutional()) for name in ("other", "alone"))
    for name, value in plain.state.items():
        assert torch.equal(other.state[name], value)
        assert torch.equal(alone.state[name], value)
    assert (other.learning_rate, alone.learning_rate) == (plain.learning_rate, 1.0)
    assert all(torch.equal(other.moments[name].square, each.square) for name, each in plain.moments.items())


def frozen() -> nn.Module:
    """A convolution as it came, and what is trained behind it."""
    torch.manual_seed(7)
    model = convolutional()
    model[0].requires_grad_(False)
    return model


@pytest.mark.parametrize("settings", [{}, {"adam": False}])
def test_checkpoints_and_optimisers_may_hold_what_is_trained_alone(tmp_path: Any, settings: Any) -> None:
    task, model = images(make_model=frozen), frozen()
    parameters = [each for each in model.parameters() if each.requires_grad]
    whole = with_optimizer(tmp_path / "whole.pt", parameters, model)
    read = torch.load(whole)
    read["model"] = {name: each for name, each in read["model"].items() if not name.startswith("0.")}
    torch.save(read, tmp_path / "part.pt")

    def scored(path: Any) -> Any:
        return score(images(make_model=frozen, checkpoints=[path]), "less", **settings)

    one, other = map(scored, (whole, tmp_path / "part.pt"))
    assert np.array_equal(one.values, other.values) and one.header.checkpoint == other.header.checkpoint
    assert scored(with_optimizer(tmp_path / "named.pt", [*model.named_parameters()], model)).values.std() > 0
    del read["model"]["6.weight"]
    torch.save(read, tmp_path / "less.pt")
    with pytest.raises(BadSetting, match=r'does not fit the model Sequential: Missing key.*"6\.weight"'):
        scored(tmp_path / "less.pt")
    assert len(train(task, frozen(), epochs=1, seed=0)[0].state) == len(frozen().state_dict()) - 2


def test_batches_have_the_size_that_is_asked_for_and_other_processes_load_them() -> None:
    given: list[int] = []

    def inputs(batch: Any) -> Any:
        given.append(len(batch[0]))
        return batch[0]

    plain = score(images(), "less", epochs=1, warm_up=0.5).values
    loaded = score(images(workers=2), "less", epochs=1, warm_up=0.5).values
    assert np.array_equal(plain, loaded)
    for changes, largest in (({}, 50), ({"batch_size": 7}, 7)):
        given.clear()
        score(images(inputs=inputs, **changes), "rds", epochs=1)
        assert max(given) == largest
    for changes in ({"batch_size": 0}, {"workers": -1}, {"batch_size": "7"}):
        with pytest.raises(BadSetting, match=f"{next(iter(changes))}=.*: it must be a whole number"):
            images(**changes)


class Tied(nn.Module):
    """Words in and out by one matrix, as language models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.inner = nn.Linear(6, 6)
        self.out = nn.Linear(6, 11, bias=False)
        self.out.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.inner(self.words(words))))


def test_weights_that_are_tied_have_one_state_of_adam() -> None:
    assert np.unique(score(texts(make_model=Tied), "less", warm_up=0.5).values).size > 1


def test_methods_that_compare_by_one_model_take_one_checkpoint(tmp_path: Any) -> None:
    paths = saved(tmp_path, images())
    for method in ("rds", "diverse"):
        with pytest.raises(BadSetting, match="compares by one model, and 2 are given"):
            score(images(checkpoints=paths), method)


def test_padding_does_not_count_in_an_embedding() -> None:
    hidden = torch.randn(2, 5, 3)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    alone = (hidden[0, 0] + 2 * hidden[0, 1] + 3 * hidden[0, 2]) / 6
    torch.testing.assert_close(pooled(hidden, mask)[0], alone)
    with pytest.raises(BadSetting, match="and no mask: which positions are text"):
        score(texts(mask=None), "rds")
    with pytest.raises(BadSetting, match=r"a mask of shape \(50,\): which"):
        score(texts(mask=lambda batch: batch[0][:, 0]), "rds")
    batch = Batch(np.arange(2), {"attention_mask": mask})
    assert torch.equal(texts(mask=None).mask_of(batch), mask)


def test_embeddings_that_are_no_numbers_are_refused() -> None:
    task = images(embed=lambda _, batch: batch[0].flatten(1) * torch.nan)
    for method in ("rds", "diverse"):
        with pytest.raises(BadSetting, match="embeddings: 50 of a batch's 50 are no finite numbers"):
            score(task, method, epochs=0)


def test_the_rest_behind_a_diverse_part_is_in_order_too() -> None:
    part = score(images(), "diverse", epochs=0, fraction=0.1).values[:, 0]
    whole = score(images(), "diverse", epochs=0).values[:, 0]
    assert np.unique(part).size == SAMPLES
    assert np.array_equal(np.argsort(-part)[:5], np.argsort(-whole)[:5])


def test_labels_that_are_no_classes_are_refused_by_el2n() -> None:
    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, labels[:, 0], reduction="none")

    task = images(labels=lambda batch: batch[1][:, None], loss=loss)
    with pytest.raises(BadSetting, match=r"el2n: labels of shape \(50, 1\), torch.int64: it needs the number"):
        score(task, "el2n", models=1)


class Halves(Images):
    """Images in the number format of large models."""

    def __getitem__(self, id: int) -> Any:
        image, label = super().__getitem__(id)
        return image.bfloat16(), label


@pytest.mark.parametrize("method", [*METHODS])
def test_models_of_bfloat16_are_scored_too(method: str) -> None:
    def flat() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(128, 3)).bfloat16()

    data, proxy = {"data": Halves(), "validation": Halves(9, seed=1)}, lambda: small().bfloat16()
    halves = images(**data, make_model=flat, make_proxy=proxy)
    assert np.unique(score(halves, method).values).size > 10


class TestEachMethod(ScorerContract):
    @pytest.fixture(autouse=True, params=[*METHODS])
    def method(self, request: Any) -> None:
        settings = {"less": {"warm_up": 0.5, "epochs": 2}, "sketch": {"epochs": 1}}
        self.scorer = METHODS[request.param](**settings.get(request.param, {}))

    def make(self) -> Any:
        return self.scorer, images(make_proxy=small)
