"""Each method's scores are those of its paper's formula, written plainly, on 50 samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.scoring.tasks import SAMPLES, Images, convolutional, images, small, texts
from torch import nn
from torch.utils.data import DataLoader

from penstock import BadSetting
from penstock.scoring.methods.less import Less
from penstock.scoring.methods.rds import Rds, nearest, pooled
from penstock.scoring.methods.sketch import Sketch
from penstock.scoring.score import METHODS, score
from penstock.scoring.scores import Scores
from penstock.scoring.task import Batch, Task
from penstock.scoring.training import Checkpoint, train
from penstock.testing.scorer import ScorerContract


class Uncalled(nn.Module):
    """Has a linear layer whose weight it uses itself."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inner = nn.Linear(inputs, outputs)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1) @ self.inner.weight.T


def saved(tmp_path: Any, task: Task, *, epochs: int = 2, make: Any = None) -> list[str]:
    """Train a model plainly, and save it with its optimizer after each epoch."""
    torch.manual_seed(5)
    model = (make or task.make_model)()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    paths = []
    for epoch in range(epochs):
        model.train()
        for batch in task.batches(shuffle_seed=epoch):
            optimizer.zero_grad()
            task.losses(model, batch).mean().backward()
            optimizer.step()
        paths.append(str(tmp_path / f"{epoch}.pt"))
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, paths[-1])
    return paths


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


def plain_gradient(task: Task, model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
    """The gradient of the layers' weights by one backward pass."""
    model.zero_grad()
    task.losses(model, batch).sum().backward()
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if name.endswith("weight")
        and parameter.grad is not None
        and parameter.dim() in (2, 4)
        and "words" not in name
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


def of_target(task: Task, model: nn.Module, id: int) -> torch.Tensor:
    (batch,) = list(task.validation_batches(""))
    one = task.inputs(batch.content)[id : id + 1], task.labels(batch.content)[id : id + 1]
    from penstock.scoring.task import Batch

    return torch.cat([each.flatten() for each in plain_gradient(task, model, Batch(np.array([id]), one)).values()])


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
    wanted = torch.stack([of_target(task, model, i) for i in range(9)]).mean(0)
    for id in range(SAMPLES):
        (gradient,) = plain_gradient(task, model, sample(task, id)).values()
        assert found[id] == pytest.approx(float(gradient.flatten() @ wanted), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("make", [images, texts])
def test_rds(tmp_path: Any, make: Any) -> None:
    """Each of the target's samples takes, in turn, the nearest that is left; a plain loop over rounds."""
    task = make()
    paths = saved(tmp_path, task, epochs=1)
    task = make(checkpoints=paths)
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

    samples = [embedding(task.data, id) for id in range(SAMPLES)]
    wanted = [embedding(task.validation, id) for id in range(9)]
    orders = [sorted(range(SAMPLES), key=lambda id: (-float(samples[id] @ each), id)) for each in wanted]
    for id in range(SAMPLES):
        rounds, cosine = min(
            (order.index(id), -float(samples[id] @ each)) for order, each in zip(orders, wanted, strict=True)
        )
        assert found.values[id, 0] == pytest.approx(0.49 * (1 - cosine) - rounds, abs=1e-4)


def test_the_index_of_rds_scores_other_targets_without_another_pass(tmp_path: Any) -> None:
    data = Images()
    checkpoints = saved(tmp_path, images(), epochs=1)
    path = score(images(data=data, checkpoints=checkpoints), "rds").save(tmp_path / "index.parquet")
    index, other = Scores.read(path, data), Images(6, seed=4)
    expected = score(images(data=data, checkpoints=checkpoints, validation=other), "rds").values
    counted: list[int] = []
    task = images(
        data=data,
        checkpoints=checkpoints,
        validation=other,
        index=index,
        inputs=lambda b: counted.append(len(b[0])) or b[0],
    )
    assert np.array_equal(score(task, "rds").values, expected)
    assert counted == [6]
    with pytest.raises(BadSetting, match=r"its embeddings are by parameters .* and the model has"):
        score(images(data=data, validation=other, index=index), "rds", epochs=1)
    with pytest.raises(BadSetting, match="has no embeddings of 50 samples"):
        score(images(checkpoints=checkpoints, index=score(images(), "el2n", models=1)), "rds")


@pytest.mark.parametrize("method", ["rds", "diverse", "el2n"])
def test_a_model_that_is_made_trained_is_not_trained_again(method: str) -> None:
    made: list[nn.Module] = []

    def make() -> nn.Module:
        made.append(convolutional())
        return made[-1]

    scores = score(images(make_model=make), method, epochs=0, **({"models": 1} if method == "el2n" else {}))
    assert scores.header.checkpoint == Checkpoint.of(made[-1]).digest and np.unique(scores.values).size > 1


def test_nearest_takes_the_first_and_leaves_no_two_alike() -> None:
    draws = np.random.default_rng(0)
    embeddings = draws.standard_normal((SAMPLES, 6)).astype("f4")
    embeddings[7] = [10, 0, 0, 0, 0, 0]
    assert nearest(embeddings, np.array([[5, 0, 0, 0, 0, 0]], "f4")).argmax() == 7
    assert np.unique(nearest(embeddings, embeddings[:1])).size == SAMPLES


def test_several_targets_have_a_score_each() -> None:
    task = images(validation={"a": Images(5, seed=3), "b": Images(6, seed=4)}, make_proxy=small)
    for method in ("rds", "less", "sketch"):
        both = score(task, method, epochs=1)
        assert both.header.targets == ("a", "b") and both.values.shape == (SAMPLES, 2)
        alone = score(images(validation=Images(6, seed=4), make_proxy=small), method, epochs=1)
        assert np.allclose(both.values[:, 1], alone.values[:, 0], rtol=1e-3, atol=1e-6)


def test_adapters_are_trained_in_place_of_the_model() -> None:
    task = images(lora_rank=2)
    found = score(task, "less", warm_up=0.5, epochs=2)
    assert found.values.std() > 0
    assert not np.allclose(found.values, score(images(), "less", warm_up=0.5, epochs=2).values)


@pytest.mark.parametrize(
    ("task", "method", "settings", "said"),
    [
        (images(validation=None), "less", {}, "validation: this method compares with samples"),
        (images(validation={"a": Images(0)}), "rds", {}, "validation 'a': no sample"),
        (images(), "sketch", {}, r"it needs a small model: Task\(make_proxy"),
        (
            images(make_proxy=convolutional),
            "sketch",
            {},
            r"the proxy has 423 parameters, of the model's 423: at most a 10th makes it cheap. .*with 42 or",
        ),
        (images(labels=lambda batch: batch[2]), "el2n", {}, "labels: a batch of list has none"),
        (images(loss=lambda outputs, labels: outputs.sum()), "el2n", {}, r"loss: shape \(\) for \d+ samples"),
        (texts(), "el2n", {"models": 1}, r"el2n: outputs of shape \(50, 6, 11\)"),
        (images(make_model=lambda: Uncalled(128, 3)), "less", {}, "the model calls none of its layers inner"),
        (
            images(make_model=lambda: nn.Linear(9999, 9), make_proxy=lambda: Uncalled(128, 3)),
            "sketch",
            {},
            "0 times",
        ),
        (images(), "best", {}, "there is no method 'best'; there are diverse, el2n, less, rds, sketch"),
        (images(), "less", {"rank": "2"}, "less has no setting rank; it has warm_up, epochs, dimensions, adam"),
        (images(), "less", {"epochs": "many"}, "less: epochs: expected `int`, got `str`"),
        (images(checkpoints=["nowhere.pt"]), "el2n", {}, "checkpoints: there is no file nowhere.pt"),
        (
            images(make_model=lambda: nn.Sequential(nn.Flatten(), nn.ReLU())),
            "rds",
            {},
            "has no parameter that could",
        ),
        (
            images(make_model=lambda: nn.Sequential(nn.Conv2d(2, 3, 8), nn.Flatten())),
            "rds",
            {},
            "has no linear layer",
        ),
    ],
)
def test_what_cannot_be_is_one_error_before_anything_is_kept(
    task: Task, method: str, settings: Any, said: str
) -> None:
    with pytest.raises(BadSetting, match=said):
        score(task, method, **settings)


def test_checkpoints_are_paths(tmp_path: Any) -> None:
    (path,) = saved(tmp_path, images(), epochs=1)
    found = [score(images(checkpoints=[each]), "el2n").values for each in (path, Path(path))]
    assert np.array_equal(*found)
    for given, said in (
        (path, "str"),
        (Path(path), "PosixPath"),
        (iter([path]), "list_iterator"),
        ([convolutional().state_dict()], "OrderedDict"),
    ):
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
    with pytest.raises(
        BadSetting, match=f"checkpoints: {paths[0]}: a checkpoint does not fit the model Sequential: Missing"
    ):
        score(images(checkpoints=paths), "el2n")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({1: torch.ones(2)}, tmp_path / "numbers.pt")
    (tmp_path / "junk.pt").write_text("junk")
    for name, said in (("numbers.pt", "does not fit"), ("junk.pt", "as plain tensors"), ("", "Is a directory")):
        with pytest.raises(BadSetting, match=f"checkpoints: {tmp_path / name}.*{said}"):
            score(images(checkpoints=[str(tmp_path / name)]), "el2n")
    with pytest.raises(BadSetting, match="holds a list, and no state_dict"):
        score(images(checkpoints=[str(tmp_path / "list.pt")]), "el2n")
    (tmp_path / "text.pt").write_text("no")
    with pytest.raises(BadSetting, match=r"text\.pt cannot be read as plain tensors"):
        score(images(checkpoints=[str(tmp_path / "text.pt")]), "el2n")
    torch.save(convolutional().state_dict(), tmp_path / "plain.pt")
    with pytest.raises(BadSetting, match=r"has no Adam state of 0\.weight"):
        score(images(checkpoints=[str(tmp_path / "plain.pt")]), "less")


def test_losses_that_are_no_numbers_are_not_kept() -> None:
    class Diverged(nn.Linear):
        def forward(self, inputs: Any) -> Any:
            return super().forward(inputs.flatten(1)) * torch.nan

    with pytest.raises(
        BadSetting, match="scores by el2n: 50 of 50 samples have none that is a number, the first is id 0"
    ):
        score(images(make_model=lambda: Diverged(128, 3)), "el2n")


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
    """Take two steps, and save."""
    optimizer = torch.optim.AdamW(groups, lr=1e-2, **settings)
    task = images()
    for batch in task.batches(shuffle_seed=0):
        optimizer.zero_grad()
        task.losses(model, batch).mean().backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return str(path)


def test_the_state_of_adam_is_that_of_its_parameter_whatever_its_groups(tmp_path: Any) -> None:
    def named(one: bool) -> Any:
        torch.manual_seed(3)
        model = convolutional()
        found = list(model.named_parameters())
        flat = [each for each in found if each[1].dim() > 1], [each for each in found if each[1].dim() == 1]
        return model, found if one else [{"params": each} for each in flat]

    def plain(one: bool) -> Any:
        model, groups = named(one)
        if one:
            return model, [each for _, each in groups]
        return model, [{"params": [each for _, each in group["params"]]} for group in groups]

    def saved_by(name: str, made: Any, **settings: Any) -> str:
        model, groups = made
        return with_optimizer(tmp_path / name, groups, model, **settings)

    one = score(images(checkpoints=[saved_by("one.pt", plain(True))]), "less").values
    two = score(images(checkpoints=[saved_by("two.pt", named(False))]), "less").values
    assert np.allclose(one, two, rtol=1e-4, atol=1e-6)
    other = score(images(checkpoints=[saved_by("other.pt", plain(True), betas=(0.5, 0.9))]), "less").values
    assert not np.allclose(one, other, rtol=1e-2)
    with pytest.raises(BadSetting, match="has 2 groups of parameters, and does not say which is which"):
        score(images(checkpoints=[saved_by("bare.pt", plain(False))]), "less")
    model, parameters = plain(True)
    with pytest.raises(BadSetting, match="its parameters stand in another order"):
        score(images(checkpoints=[with_optimizer(tmp_path / "back.pt", parameters[::-1], model)]), "less")
    content = torch.load(tmp_path / "one.pt")
    content["optimizer"]["param_groups"][0]["lr"] = 0.0
    torch.save(content, tmp_path / "end.pt")
    with pytest.raises(BadSetting, match="was saved with a learning rate of 0"):
        score(images(checkpoints=[str(tmp_path / "end.pt")]), "less")


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
    with pytest.raises(BadSetting, match="nobody says which positions are text"):
        score(texts(mask=None), "rds")
    with pytest.raises(BadSetting, match=r"a mask of shape \(50,\) says"):
        score(texts(mask=lambda batch: batch[0][:, 0]), "rds")
    batch = Batch(np.arange(2), {"attention_mask": mask})
    assert torch.equal(texts(mask=None).mask_of(batch), mask)


def test_embeddings_that_are_no_numbers_are_refused() -> None:
    for method in ("rds", "diverse"):
        with pytest.raises(BadSetting, match="50 of 50 embeddings are not finite"):
            score(images(embed=lambda _, batch: batch[0].flatten(1) * torch.nan), method, epochs=0)


def test_an_index_of_other_data_is_refused(tmp_path: Any) -> None:
    paths = saved(tmp_path, images(), epochs=1)
    index = score(images(data=Images(seed=7), checkpoints=paths), "rds")
    with pytest.raises(BadSetting, match="index: its embeddings are of other data"):
        score(images(checkpoints=paths, index=index), "rds")


def test_of_samples_that_one_round_takes_the_nearer_comes_first() -> None:
    embeddings = np.array([[1, 0.5], [0.1, 1], [1, 0.1], [0.5, 1]], "f4")
    near = nearest(embeddings, np.array([[1, 0], [0.4, 1]], "f4"), centred=False)
    assert np.argsort(-near)[:2].tolist() == [3, 2]  # both in round 0; 3 is nearer to its target


def test_the_rest_behind_a_diverse_part_is_in_order_too() -> None:
    part = score(images(), "diverse", epochs=0, fraction=0.1).values[:, 0]
    whole = score(images(), "diverse", epochs=0).values[:, 0]
    assert np.unique(part).size == SAMPLES
    assert np.array_equal(np.argsort(-part)[:5], np.argsort(-whole)[:5])


@pytest.mark.parametrize(
    ("task", "method", "settings", "said"),
    [
        (images(inputs=lambda batch: batch["image"]), "el2n", {}, "inputs: a batch of list has none"),
        (images(validation={1: Images(3)}), "rds", {}, "validation: the name 1 is a int, and no text"),
        (images(), "less", {"epochs": 0}, "less: epochs: expected `int` >= 1"),
        (images(), "el2n", {"models": 0}, "el2n: models: expected `int` >= 1"),
        (images(), "rds", {"epochs": -1}, "rds: epochs: expected `int` >= 0"),
        (images(), "diverse", {"fraction": 0}, "diverse: fraction: expected `float` > 0"),
        (images(), "less", {"warm_up": 2}, "less: warm_up: expected `float` <= 1"),
    ],
)
def test_what_makes_no_sense_is_one_error(task: Task, method: str, settings: Any, said: str) -> None:
    with pytest.raises(BadSetting, match=said):
        score(task, method, **settings)


def test_labels_that_are_no_classes_are_refused_by_el2n() -> None:
    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, labels[:, 0], reduction="none")

    task = images(labels=lambda batch: batch[1][:, None], loss=loss)
    with pytest.raises(BadSetting, match=r"el2n: labels of shape \(50, 1\), torch.int64: it needs the number"):
        score(task, "el2n", models=1)


class TestDiverse(ScorerContract):
    def make(self) -> Any:
        return METHODS["diverse"](), images()


class Halves(Images):
    """Images in the number format of large models."""

    def __getitem__(self, id: int) -> Any:
        image, label = super().__getitem__(id)
        return image.bfloat16(), label


@pytest.mark.parametrize("method", [*METHODS])
def test_models_of_bfloat16_are_scored_too(method: str) -> None:
    def flat() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(128, 3)).bfloat16()

    halves = images(
        data=Halves(), validation=Halves(9, seed=1), make_model=flat, make_proxy=lambda: small().bfloat16()
    )
    assert np.unique(score(halves, method).values).size > 10


class TestEl2n(ScorerContract):
    def make(self) -> Any:
        return METHODS["el2n"](), images()


class TestRds(ScorerContract):
    def make(self) -> Any:
        return Rds(), images()


class TestLess(ScorerContract):
    def make(self) -> Any:
        return Less(warm_up=0.5, epochs=2), images()


class TestSketch(ScorerContract):
    def make(self) -> Any:
        return Sketch(epochs=1), images(make_proxy=small)
