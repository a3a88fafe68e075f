"""Scoring reads from a feed: one loader for scoring and for training."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
from tests.select.tasks import SAMPLES, Images, convolutional, images, small
from torch.utils.data import DataLoader

import penstock
from penstock import select
from penstock.errors import BadSetting


@pytest.fixture
def feed(serve: Any) -> None:
    """A feed of the images, shuffled."""
    serve(DataLoader(Images(), 8, shuffle=True), window="1MiB")  # type: ignore[arg-type]


def test_scores_of_a_feed_are_those_of_its_data(feed: None, tmp_path: Any) -> None:
    torch.manual_seed(0)
    torch.save(small().state_dict(), tmp_path / "m.pt")
    changes = {"make_proxy": small, "checkpoints": [str(tmp_path / "m.pt")]}
    of_model = {"make_model": small, "checkpoints": changes["checkpoints"]}
    with penstock.attach("feed", batch_size=9) as loader:
        for method, its in (("sketch", changes), ("el2n", of_model)):
            found = select.score(images(data=loader, **its), method)
            expected = select.score(images(**its), method)
            assert np.allclose(found.values, expected.values, rtol=1e-4, atol=1e-6)
        with pytest.warns(UserWarning, match="hold none of class 0"):
            chosen = select.top(found, 0.5)
        loader.select(chosen)
        assert sorted(id for _ in loader for id in loader.ids.tolist()) == chosen.ids.tolist()
    assert found.header.data.samples == SAMPLES


def test_an_epoch_that_does_not_hold_each_sample_once_is_not_scored(feed: None) -> None:
    with penstock.attach("feed", batch_size=9, drop_last=True) as loader:
        for method in ("el2n", "sketch", "diverse"):
            with pytest.raises(BadSetting, match="of 50 samples, an epoch leaves out 5 and repeats 0"):
                select.score(images(data=loader, make_proxy=small, make_model=convolutional), method, epochs=0)


def test_a_feed_s_loader_selects_afterwards_what_it_did_before(feed: None) -> None:
    with penstock.attach("feed", batch_size=9, select=[1, 2, 3]) as loader:
        select.score(images(data=loader), "el2n", models=1, epochs=0)
        assert sorted(id for _ in loader for id in loader.ids.tolist()) == [1, 2, 3]


def test_a_part_of_a_feed_is_trained_on_first(feed: None) -> None:
    with penstock.attach("feed", batch_size=9, select=[1, 2, 3]) as loader:
        found = select.score(images(data=loader), "less", warm_up=0.3, epochs=2)
    assert found.values.shape == (SAMPLES, 1) and np.unique(found.values).size > 1


def test_a_frozen_encoder_in_the_feed_scores_while_it_embeds(serve: Any) -> None:
    """The embedding comes with the batch: no model sees a sample again."""
    torch.manual_seed(0)
    encoder = small()

    def embeds(batch: Any) -> Any:
        with torch.no_grad():
            return {"embedding": encoder(torch.as_tensor(batch[0])), "label": batch[1]}

    serve(DataLoader(Images(), 8, shuffle=True), window="1MiB", transform=embeds)  # type: ignore[arg-type]

    class Embedded(Images):
        def __getitem__(self, id: int) -> Any:
            return embeds((self.images[id : id + 1], self.labels[id : id + 1]))

    def embedding(_: Any, batch: Any) -> torch.Tensor:
        return torch.as_tensor(batch["embedding"]).reshape(-1, 3)

    with penstock.attach("feed", batch_size=9) as loader:
        task = images(data=loader, make_model=small, validation=Embedded(9, seed=1), embed=embedding)
        found = select.score(task, "diverse", epochs=0)
    plain = images(data=Embedded(), make_model=small, validation=Embedded(9, seed=1), embed=embedding)
    assert np.array_equal(found.values, select.score(plain, "diverse", epochs=0).values)


def test_a_stream_cannot_be_scored(serve: Any) -> None:
    class Stream:
        def __iter__(self) -> Any:
            return iter([np.zeros((4, 2))] * 5)

    serve(Stream(), epochs=1)
    with penstock.attach("feed") as loader, pytest.raises(BadSetting, match="scores need numbered samples"):
        select.score(images(data=loader), "el2n")


class Costly(Images):
    """Images that take time to make."""

    def __getitem__(self, id: int) -> Any:
        until_s = time.process_time() + 0.01
        while time.process_time() < until_s:
            pass
        return super().__getitem__(id)


def make_costly() -> Any:
    return DataLoader(Costly(), 8)  # type: ignore[arg-type]


@pytest.mark.whole
def test_what_the_feeder_uses_counts() -> None:
    with penstock.share(make_costly, "costly", linger=0.1) as loader:
        cost = select.score(images(data=loader), "el2n", models=1, epochs=0).header.cost
    assert 0.2 < cost.feeder_cpu_s < cost.cpu_s
