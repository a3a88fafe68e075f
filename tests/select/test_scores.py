"""Scores are kept with what they were computed from, and are refused for anything else."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.select.tasks import SAMPLES, Images, images, small

from penstock import select
from penstock.errors import BadSetting
from penstock.runs.machine import describe
from penstock.select.identity import DataIdentity, ScoresHeader, identity_of
from penstock.select.meter import Cost, metered
from penstock.select.scores import Scores, names


def header(samples: int = SAMPLES, **changes: Any) -> ScoresHeader:
    given = {"data": DataIdentity(samples), "ids_digest": "", "method": "mine", "method_version": "1"}
    return ScoresHeader(**given | {"cost": Cost(1.0, 2.0), "machine": describe()} | changes)


def some(samples: int = SAMPLES, **changes: Any) -> Scores:
    return Scores(np.arange(samples), np.arange(samples) * 7 % 13, header(samples, **changes))


def test_they_come_back_as_they_were_saved(tmp_path: Path) -> None:
    task = images(validation={"a": Images(5, seed=3), "b": Images(6, seed=4)}, make_proxy=small)
    scores = select.score(task, "sketch", epochs=1, seed=4)
    path = scores.save(tmp_path / "deep" / "s.parquet")
    again = Scores.read(path, task.data)
    assert np.array_equal(again.values, scores.values) and np.array_equal(again.ids, scores.ids)
    assert again.header == scores.header
    assert again.header.settings == {"epochs": "1", "side": "128"} and again.header.seed == 4
    assert pq.read_table(path).column_names == ["id", "score.a", "score.b", "class"]
    assert np.array_equal(again.classes, task.data.labels)
    assert [each.name for each in path.parent.iterdir()] == ["s.parquet"]


def test_a_name_means_a_file_that_every_process_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SCORES", str(tmp_path / "kept"))
    with pytest.raises(BadSetting, match="there are no scores of name 'tweets/less': none are kept"):
        Scores.read("tweets/less")
    some().save("tweets/less")
    assert names() == ["tweets/less"]
    assert len(Scores.read("tweets/less")) == SAMPLES
    with pytest.raises(BadSetting, match="no scores of name 'less': there are tweets/less"):
        Scores.read("less")
    for wrong in ("../less", "/less", "a//b", ".hidden", ""):
        with pytest.raises(BadSetting, match="is no name of scores"):
            some().save(wrong)


class Changed(Images):
    """The same images with another change for each test."""

    def __init__(self, order: Any = None, **attributes: Any) -> None:
        super().__init__()
        if order is not None:
            self.images, self.labels = self.images[order], self.labels[order]
        for name, value in attributes.items():
            setattr(self, name, value)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Images(49), "50 samples then, 49 now"),
        (Images(seed=9), r"its samples hold other values in \[0\], \[1\], or stand in another order: 50 of 50"),
        (Changed(order=np.random.default_rng(0).permutation(SAMPLES)), r"another order"),
        (Changed(labels=np.zeros(SAMPLES, int)), r"other values in \[1\], or"),
    ],
)
def test_other_data_another_order_and_fewer_rows_are_refused(tmp_path: Path, other: Any, said: str) -> None:
    path = select.score(images(), "el2n", epochs=1, models=1).save(tmp_path / "s.parquet")
    with pytest.raises(BadSetting, match=f"these scores by el2n are of other data: .*{said}"):
        Scores.read(path, other)
    assert len(Scores.read(path, Changed())) == SAMPLES


class Augmented(Images):
    """Each reading draws from a global generator."""

    def __getitem__(self, id: int) -> tuple[Any, int]:
        image, label = super().__getitem__(id)
        return image + torch.rand(1) + float(np.random.random()), label


def test_what_is_augmented_does_not_count_and_nobody_s_random_numbers_are_moved() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    identity = identity_of(Augmented())
    assert (torch.get_rng_state() == before[0]).all() and np.random.get_state()[1].tolist() == before[1]
    assert set(identity.content) == {"[1]"}
    assert set(identity_of(Images()).content) == {"[0]", "[1]"}
    assert not identity.difference(identity_of(Images()))
    assert not identity_of(Images()).difference(identity)
    assert "in [1]" in identity.difference(identity_of(Images(seed=3)))


def test_what_could_not_be_compared_is_said() -> None:
    """Labels in order are alike in many data sets: then only augmented images would tell them apart."""
    plain, augmented = Images(), Augmented()
    others = Augmented()
    others.images = others.images + 1
    for scored, read, said in (
        (plain, plain, ""),
        (augmented, augmented, ""),  # the same random numbers make the same of it
        (plain, augmented, r"the samples' parts in \[0\] are random, and were not compared"),
        (augmented, plain, r"parts in \[0\] are random"),
        (augmented, others, r"parts in \[0\] are random"),
        (plain, [(*plain[id], id) for id in range(SAMPLES)], ""),  # what is new is none of what was scored
    ):
        told = pytest.warns(UserWarning, match=f"these scores by mine may be of other data: .*{said}")
        with told if said else nullcontext():
            some(data=identity_of(scored)).check(read)
    some().check(plain)  # as from a feed: they know the number of samples only


def test_one_sample_among_many_that_holds_something_else_is_seen() -> None:
    scored, other = Images(200), Images(200)
    other.labels[1] += 1  # none of the 64 that are always read
    scores = some(200, data=identity_of(scored))
    with pytest.raises(BadSetting, match=r"other values in \[1\], or stand in another order: 200 of 200"):
        scores.check(other)
    scores.check(Images(200))


class InFiles:
    """Samples that are read when they are asked for, from files that the object names, or their folder."""

    def __init__(self, folder: Path, *, named: bool) -> None:
        self.files = [folder / f"{id}.npy" for id in range(200)] if named else folder

    def __len__(self) -> int:
        return 200

    def __getitem__(self, id: int) -> Any:
        return np.load(self.files[id] if isinstance(self.files, list) else self.files / f"{id}.npy")


@pytest.mark.parametrize("named", [True, False])
def test_a_file_that_holds_something_else_now_is_seen_though_the_object_is_equal(named: bool, tmp_path: Path):
    for id in range(200):
        np.save(tmp_path / f"{id}.npy", np.full(3, id))
    scores = some(200, data=identity_of(InFiles(tmp_path, named=named)))
    scores.check(InFiles(tmp_path, named=named))
    np.save(tmp_path / "1.npy", np.full(3, 7))
    with pytest.raises(BadSetting, match="or stand in another order: 200 of 200"):
        scores.check(InFiles(tmp_path, named=named))


def test_where_reading_all_takes_long_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = some(200, data=identity_of(Images(200)))
    monkeypatch.setattr("penstock.select.identity._MOST_S", 0.0)
    with pytest.warns(UserWarning, match="may be of other data: 64 of 200 samples were compared, since reading"):
        scores.check(Images(200))
    some(60, data=identity_of(Images(60))).check(Images(60))


def test_samples_of_many_kinds_are_told_apart() -> None:
    class Things:
        def __init__(self, thing: Any) -> None:
            self.thing = thing

        def __len__(self) -> int:
            return 1

        def __getitem__(self, id: int) -> Any:
            return {"thing": self.thing, "other": object()}

    kinds = ["a", b"a", 1, 1.0, True, np.arange(3), np.arange(3.0), [1, "a"], {"x": 1}, torch.ones(2)]
    found = [identity_of(Things(each)) for each in kinds]
    for i, one in enumerate(found):
        assert one.content
        assert [j for j, other in enumerate(found) if one == other] == [i]
    with pytest.raises(BadSetting, match="a generator has no length"):
        identity_of(i for i in range(3))


def test_a_file_that_is_damaged_or_foreign_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"there is no file"):
        Scores.read(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("id,score\n1,2\n")
    with pytest.raises(BadSetting, match=r"text\.parquet is no Parquet file"):
        Scores.read(tmp_path / "text.parquet")
    pq.write_table(pa.table({"id": [1]}), tmp_path / "foreign.parquet")
    with pytest.raises(BadSetting, match="holds no scores: penstock select score writes such files"):
        Scores.read(tmp_path / "foreign.parquet")
    path = some().save(tmp_path / "s.parquet")
    table = pq.read_table(path)
    for changed in (table.slice(0, 40), table.take(np.arange(SAMPLES)[::-1])):
        pq.write_table(changed, path)
        with pytest.raises(BadSetting, match=r"its rows are not those that were scored: [45]0 ids"):
            Scores.read(path)


def test_scores_that_are_not_finite_or_do_not_fit_are_refused() -> None:
    with pytest.raises(BadSetting, match=r"scores by mine: 2 of 3 samples have none .* the first is id 1"):
        Scores(np.arange(3), [0.0, np.nan, np.inf], header(3))
    with pytest.raises(BadSetting, match=r"scores of shape \(2,\) for 3 samples and 1 target"):
        Scores(np.arange(3), [0.0, 1.0], header(3))
    with pytest.raises(BadSetting, match="for 3 samples and 2 targets"):
        Scores(np.arange(3), np.zeros(3), header(3, targets=("a", "b")))


def test_the_top_is_what_sorting_says_and_fits_its_data_set_only() -> None:
    scores, plain = some(), np.arange(SAMPLES) * 7 % 13
    for direction, sign in (("high", -1), ("low", 1)):
        expected = sorted(range(SAMPLES), key=lambda id: (sign * plain[id], id))[:20]
        assert select.top(some(direction=direction), 0.4).ids.tolist() == sorted(expected)
    with pytest.raises(BadSetting, match="some of 50 samples, and the data set has 60"):
        select.top(scores, 0.4).check(60)
    with pytest.raises(BadSetting, match=r"fraction=0.001 selects none of 50 samples; 0\.02 selects one"):
        select.top(scores, 0.001)
    for wrong in (0, -1, 1.5, float("nan"), "0.5", None):
        with pytest.raises(BadSetting, match="must be a number above 0, and at most 1"):
            select.top(scores, wrong)  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match="target='x': these scores have none"):
        select.top(scores, 0.5, target="x")


def test_targets_take_the_best_in_turn() -> None:
    values = np.array([[9, 0], [8, 1], [7, 2], [0, 9], [1, 3]])
    scores = Scores(np.arange(5), values, header(5, targets=("a", "b")))
    assert select.top(scores, 0.4).ids.tolist() == [0, 3]
    assert select.top(scores, 0.6).ids.tolist() == [0, 1, 3]
    assert select.top(scores, 0.4, target="b").ids.tolist() == [3, 4]
    alike = Scores(np.arange(5), [[9, 9], [8, 1], [7, 8], [0, 2], [1, 3]], header(5, targets=("a", "b")))
    assert select.top(alike, 0.4).ids.tolist() == [0, 2], "what b wants first is gone: it takes its next"
    assert select.top(alike, 1.0).ids.tolist() == [0, 1, 2, 3, 4]


def test_each_class_keeps_its_part() -> None:
    labels = np.array([0] * 40 + [1] * 10)
    chosen = select.stratified(some(), 0.5, labels)
    assert np.bincount(labels[chosen.ids]).tolist() == [20, 5]
    for group in (0, 1):
        rows = np.flatnonzero(labels == group)
        worth = some().values[rows, 0]
        assert set(chosen.ids) & set(rows) == set(rows[np.argsort(-worth, kind="stable")[: len(rows) // 2]])
    with pytest.raises(BadSetting, match=r"groups: shape \(3,\), for 50 scored samples"):
        select.stratified(some(), 0.5, [1, 2, 3])


@pytest.mark.parametrize(
    ("sizes", "fraction", "counts"),
    [
        ([5] * 10, 0.5, [3, 3, 3, 3, 3, 2, 2, 2, 2, 2]),
        ([1, 49], 0.5, [1, 24]),
        ([1, 1, 1, 47], 0.1, [1, 1, 1, 2]),
        ([50], 0.3, [15]),
    ],
)
def test_parts_of_classes_add_up_and_none_is_left_out(sizes: Any, fraction: float, counts: Any) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    assert np.bincount(labels[select.stratified(some(), fraction, labels).ids]).tolist() == counts


def test_choices_of_what_is_no_scores_or_no_class_are_refused() -> None:
    for given in (np.zeros(SAMPLES), "less", None):
        for choose in (select.top, partial(select.stratified, groups=np.zeros(SAMPLES))):
            with pytest.raises(BadSetting, match=r"scores: a \w+; give Scores, such as Scores.read"):
                choose(given, 0.5)
    with pytest.raises(BadSetting, match="selects 5 samples, and there are 10 classes"):
        select.stratified(some(), 0.1, np.arange(SAMPLES) % 10)
    with pytest.raises(BadSetting, match="groups: 2 of 50 are NaN or None"):
        select.stratified(some(), 0.5, np.array(["cat", None, np.nan, *"a" * 47], object))
    with pytest.raises(BadSetting, match="groups: a list: give the class of each sample"):
        select.stratified(some(), 0.5, [(np.zeros(3), 1), (np.zeros(2), 2)])


def test_a_choice_that_loses_a_class_warns() -> None:
    classes = np.repeat([4, 7, 9], [30, 15, 5])
    scores = Scores(np.arange(SAMPLES), -np.arange(SAMPLES), header(), classes=classes)
    with pytest.warns(UserWarning, match=r"20 of 50 samples by mine hold none of class 7 \(15 samples\), and of"):
        select.top(scores, 0.4)
    with pytest.warns(UserWarning, match=r"hold none of class 9 \(5 samples\): stratified"):
        select.top(scores, 0.8)
    assert len(select.top(scores, 0.92)) == 46  # all are there
    assert len(select.stratified(scores, 0.4, classes)) == 20


def test_labels_that_are_no_classes_are_none() -> None:
    plain = Images()
    plain.labels = np.arange(SAMPLES)
    task = images(data=plain, labels=lambda batch: batch[1] % 3)
    assert select.score(task, "diverse", epochs=0).classes.tolist() == [id % 3 for id in range(SAMPLES)]
    task = images(data=plain, embed=lambda model, batch: batch[0].flatten(1))
    assert select.score(task, "diverse", epochs=0).classes is None
    assert select.score(images(data=[each for each, _ in plain]), "diverse", epochs=0).classes is None


def test_ids_of_scores_are_those_of_samples() -> None:
    for ids in ([3, 3], [2, 1], [-1, 0]):
        with pytest.raises(BadSetting, match="ids: they must rise, from 0 or more, each once"):
            Scores(np.array(ids), [1, 2], header())


def test_a_place_that_cannot_be_written_is_said_before_hours_of_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadSetting, match=r"s\.parquet cannot be written: .*deep: Not a directory"):
        some().save(tmp_path / "file" / "deep" / "s.parquet")


def test_data_with_other_parts_are_other_data() -> None:
    class Named(Images):
        def __getitem__(self, id: int) -> Any:
            image, label = super().__getitem__(id)
            return {"image": image, "label": label}

    said = identity_of(Images()).difference(identity_of(Named()))
    assert "have parts in [0], [1] then, and in ['image'], ['label'] now" in said


def plain_k_center(vectors: np.ndarray, take: int, first: int) -> set[int]:
    taken = [first]
    while len(taken) < take:
        distances = [min(float(np.sum((v - vectors[t]) ** 2)) for t in taken) for v in vectors]
        taken.append(int(np.argmax([-1 if i in taken else d for i, d in enumerate(distances)])))
    return set(taken)


def test_different_samples_are_those_of_the_plain_greedy_algorithm() -> None:
    vectors = np.random.default_rng(1).standard_normal((SAMPLES, 5)).astype("f4")
    first = int(np.random.default_rng(7).integers(SAMPLES))
    assert set(select.diverse(vectors, 0.3, seed=7).ids.tolist()) == plain_k_center(vectors, 15, first)


def test_of_near_duplicates_one_is_taken() -> None:
    draws = np.random.default_rng(0)
    originals = draws.standard_normal((30, 8))
    vectors = np.concatenate([originals, originals + 1e-3 * draws.standard_normal((30, 8))])
    assert sorted(id % 30 for id in select.diverse(vectors, 0.5).ids.tolist()) == list(range(30))
    assert len(select.diverse(np.zeros((10, 3)), 0.5)) == 5  # nothing differs


def test_embeddings_that_are_none_are_refused() -> None:
    with pytest.raises(BadSetting, match=r"embeddings: shape \(3,\)"):
        select.diverse(np.zeros(3), 0.5)
    with pytest.raises(BadSetting, match="embeddings: 1 of 5 are not finite, the first is id 3"):
        select.diverse([[1, 1], [1, 1], [1, 1], [1, np.nan], [1, 1]], 0.5)


def test_reported_losses_are_scores_that_cost_nothing(tmp_path: Path) -> None:
    kept = select.ReportedLosses(SAMPLES)
    for id in range(40):
        for loss in (float(id), id + 1.0):
            kept.report(torch.tensor([id]), torch.tensor([loss], requires_grad=True))
    with pytest.warns(UserWarning, match="no loss was reported of 10 of 50 samples"):
        scores = kept.scores(Images())
    assert scores.ids.tolist() == [*range(40)] and scores.values[:, 0].tolist() == [id + 0.5 for id in range(40)]
    assert select.top(scores, 0.25).ids.tolist() == list(range(10))
    assert scores.header.cost == Cost(0.0, 0.0, 0.0) and scores.check(Images()) is scores
    again = select.ReportedLosses(SAMPLES)
    for damaged in ({}, {"sums": 1, "counts": b""}, {"sums": b"123", "counts": b""}):
        with pytest.raises(BadSetting, match="does not come from the state_dict"):
            again.load_state_dict(damaged)
    torch.save({"kept": kept.state_dict()}, tmp_path / "kept.pt")
    again.load_state_dict(torch.load(tmp_path / "kept.pt")["kept"])
    kept.report(np.arange(40, 50), np.zeros(10))
    again.report(np.arange(40, 50), np.zeros(10))
    assert np.array_equal(again.scores(Images()).values, kept.scores(Images()).values)
    with pytest.raises(BadSetting, match="this state is of 50 samples, and these are 51"):
        select.ReportedLosses(51).load_state_dict(kept.state_dict())
    with pytest.raises(BadSetting, match="no loss was reported"):
        select.ReportedLosses(3).scores()
    with pytest.raises(BadSetting, match="data: 49 samples, and losses were reported of 50"):
        kept.scores(Images(49))


def test_what_work_costs_is_measured() -> None:
    with metered() as meter:
        sum(i * i for i in range(300_000))
    assert 0 < meter.cost.cpu_s and 0 < meter.cost.seconds
    assert not any(thread.name == "penstock-meter" for thread in threading.enumerate())
    assert Cost(1.0, 360.0).wh_at(10) == 1.0 and Cost(1.0, 360.0, 5.0).wh_at(10) == 5.0


def test_a_counter_that_begins_anew_is_read_often_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wraps:
        """Gives 1 J at each reading, as one would that goes round while nobody looks."""

        total_j = 0.0

        def read_j(self) -> float:
            self.total_j += 1.0
            return 1.0

    zone = Wraps()
    monkeypatch.setattr("penstock.select.meter.rapl_missing", lambda: None)
    monkeypatch.setattr("penstock.select.meter.rapl_zones", lambda: [zone])
    monkeypatch.setattr("penstock.select.meter._READ_EVERY_S", 0.01)
    with metered() as meter:
        while zone.total_j < 5:
            time.sleep(0.01)
    assert meter.cost.wh is not None and zone.total_j >= 6


def test_scores_by_the_ids_that_images_in_a_feed_had_before_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    with pytest.raises(BadSetting, match=r"whose images may have other ids now"):
        Scores.read(some(format=1).save(path))
    assert len(Scores.read(some(format=1, data=identity_of(Images())).save(path), Images())) == SAMPLES
    assert len(Scores.read(some().save(path))) == SAMPLES
