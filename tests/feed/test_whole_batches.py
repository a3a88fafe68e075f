"""Batches that vary in shape go to trainers as they are, and all in the types that the loader's have."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tests.feed.reading import at_once
from tests.forked import Forked
from torch.utils.data import DataLoader

import penstock


@dataclass
class Detection:
    images: torch.Tensor
    boxes: list[torch.Tensor]
    names: tuple[str, ...]
    scale: np.float32
    n: int


def padded(texts: list[list[int]]) -> dict[str, torch.Tensor]:
    longest = max(map(len, texts))
    tokens = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    return {"tokens": tokens, "length": torch.tensor([len(text) for text in texts])}


TEXTS = [[i + 1] * (i * 7 % 13 + 1) for i in range(50)]


def loader_of_texts() -> DataLoader[Any]:
    return DataLoader(TEXTS, batch_size=4, shuffle=True, collate_fn=padded)


def detections() -> list[Detection]:
    return [
        Detection(
            torch.full((2, 3, i + 1, 5), i, dtype=torch.float16),
            [torch.full((i, 4), 1.0 * i), torch.zeros(0, 4)],
            (f"{i}", "b"),
            np.float32(i / 2),
            i,
        )
        for i in range(8)
    ]


@pytest.mark.parametrize("borrow", [False, True])
def test_dynamic_padding_comes_as_the_loader_gave_it(serve, borrow):
    serve(loader_of_texts(), whole_batches=True, window="64KiB", segments=3)
    with penstock.attach("feed", borrow=borrow) as loader:
        assert len(loader) == 13
        for _ in range(3):
            firsts: list[int] = []
            for batch in loader:
                assert batch["tokens"].shape[1] == int(batch["length"].max())
                for row, length in zip(batch["tokens"], batch["length"], strict=True):
                    assert (row[:length] == row[0]).all()
                    assert (row[length:] == 0).all()
                    firsts.append(int(row[0]))
            assert sorted(firsts) == [i + 1 for i in range(50)]


@pytest.mark.parametrize("borrow", [False, True])
def test_types_and_shapes_come_back(serve, borrow):
    serve(detections(), whole_batches=True)
    with penstock.attach("feed", borrow=borrow) as loader:
        for _ in range(2):
            got = list(loader)
            assert len(got) == 8
            for i, (one, own) in enumerate(zip(got, detections(), strict=True)):
                assert type(one) is Detection
                assert torch.equal(one.images, own.images)
                assert one.images.dtype == torch.float16
                assert [box.shape for box in one.boxes] == [(i, 4), (0, 4)]
                assert (one.names, one.n) == (own.names, i)
                assert type(one.scale) is np.float32
                assert one.scale == own.scale
            del one, got


def test_a_batch_size_cannot_be_asked_for(serve):
    serve(loader_of_texts(), whole_batches=True)
    with pytest.raises(penstock.errors.BadSetting, match=r"batch_size=8 is not possible. Leave batch_size out"):
        penstock.attach("feed", 8)


def test_another_structure_is_still_an_error(serve):
    batches: list[Any] = [{"x": np.zeros((2, 3))}, {"x": np.zeros((4, 9))}, {"x": np.zeros((4, 9), "f4")}]
    serve(batches, whole_batches=True)
    with penstock.attach("feed") as loader:
        it = iter(loader)
        assert [next(it)["x"].shape, next(it)["x"].shape] == [(2, 3), (4, 9)]
        with pytest.raises(penstock.errors.BlockChanged, match=r"leaf batch\['x'\]: numpy <f8 .* numpy <f4"):
            next(it)


def test_private_copies_may_be_changed(serve):
    serve(detections(), whole_batches=True)
    with penstock.attach("feed") as one, penstock.attach("feed") as other:
        for mine, theirs in zip(one, other, strict=True):
            mine.images.fill_(-1)
            assert (theirs.images == theirs.n).all()


def test_a_state_goes_on_with_the_next_batch(serve):
    serve(loader_of_texts(), whole_batches=True)
    with penstock.attach("feed") as loader:
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        state = loader.state_dict()
        rest = [batch["tokens"] for batch in batches]
        loader.load_state_dict(state)
        again = [batch["tokens"] for batch in loader]
        assert len(rest) == 8
        assert all(torch.equal(a, b) for a, b in zip(rest, again, strict=True))


def test_ranks_get_a_batch_each_in_turn(serve):
    serve([{"x": np.full((i + 1, 2), i)} for i in range(7)], whole_batches=True)
    with pytest.raises(penstock.errors.BadSetting, match="pass drop_last=True"):
        penstock.attach("feed", shard=(0, 2))

    def train(rank: int) -> list[int]:
        with penstock.attach("feed", shard=(rank, 2), drop_last=True) as loader:
            return [int(batch["x"][0, 0]) for batch in loader]

    assert at_once(train, 2) == [[0, 2, 4], [1, 3, 5]]


def test_drop_last_of_whole_batches_leaves_out_the_short_one_where_no_length_is_known(serve):
    class Endless:
        def __iter__(self) -> Iterator[int]:
            return iter(range(10))

    sampler: Any = Endless()
    serve(DataLoader(TEXTS, 4, sampler=sampler, drop_last=True, collate_fn=padded), whole_batches=True)
    with penstock.attach("feed") as loader:
        assert [[len(batch["length"]) for batch in loader] for _ in range(2)] == [[4, 4]] * 2


class Encoding(UserDict[str, Any]):
    """As what Hugging Face's collators return."""


class Image(torch.Tensor):
    """As fastai's and torchvision's images."""


def collated(samples: list[int]) -> Encoding:
    """Pad to the longest, as dynamic padding does."""
    rows = torch.tensor(samples)
    return Encoding(ids=rows, image=torch.ones(len(samples), max(samples)).as_subclass(Image))


def even(samples: list[int]) -> Encoding:
    return Encoding(ids=torch.tensor(samples), image=torch.ones(len(samples), 3).as_subclass(Image))


@pytest.mark.parametrize(
    ("whole", "workers", "borrow"), [(False, 0, True), (False, 1, False), (True, 0, False), (True, 1, True)]
)
def test_a_mapping_and_a_tensor_of_a_subclass_come_back_with_their_types(serve, whole, workers, borrow):
    data: Any = range(1, 21)
    loader = DataLoader(data, 4, collate_fn=collated if whole else even, num_workers=workers)
    serve(loader, whole_batches=whole, segments=1)
    with penstock.attach("feed", None if whole else 7, borrow=borrow) as trainer:
        batches = list(trainer)
    assert [len(batch["ids"]) for batch in batches] == ([4] * 5 if whole else [7, 7, 6])
    assert [int(i) for batch in batches for i in batch["ids"]] == list(data)
    for batch in batches:
        assert type(batch) is Encoding
        assert type(batch["ids"]) is torch.Tensor
        assert type(batch["image"]) is Image
        assert batch["image"].shape[1] == (int(batch["ids"].max()) if whole else 3)
        assert (batch["image"] == 1).all()


def test_what_becomes_another_frameworks_is_that(serve):
    serve([Encoding(image=torch.ones(4, 3).as_subclass(Image))])
    for framework, kind in (("numpy", np.ndarray), ("torch", Image)):
        with penstock.attach("feed", framework=framework) as trainer:
            (batch,) = trainer
            assert (type(batch), type(batch["image"])) == (Encoding, kind)


TRAINER = """
import penstock, warnings
warnings.simplefilter("default")
with penstock.attach("types") as loader:
    kinds = {(type(batch), type(batch["ids"])) for batch in loader}
assert kinds == {(dict, __import__("numpy").ndarray)}, kinds
"""


def test_a_trainer_that_has_not_imported_a_type_gets_a_dict_and_one_line(serve, servers, tmp_path):
    serve([Encoding(ids=np.arange(3))] * 5, "types")
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    trainer = Forked(servers["numpy"], str(script), [], tmp_path / "out")
    assert trainer.wait() == 0, trainer.output
    assert trainer.output.count("UserWarning") == 1
    assert f"hold a {__name__}:Encoding, which this process has not imported" in trainer.output
    assert "trainer.py:5: UserWarning" in trainer.output
