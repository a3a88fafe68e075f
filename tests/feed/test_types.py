"""Batches come back in the types that the loader's batches have, where the trainer knows these."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch
from tests.forked import Forked
from torch.utils.data import DataLoader

import penstock


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


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("borrow", [False, True])
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
