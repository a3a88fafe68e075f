"""A feed whose loader's workers are started as ``sys.argv[1]`` says: to be run, not imported."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import penstock


class Row(NamedTuple):
    payload: Any
    number: Any


class Rows(Dataset[Row]):
    def __len__(self) -> int:
        return 320

    def __getitem__(self, i: int) -> Row:
        return Row(np.full(512, i % 251, np.uint8), i)


def main(context: str, persistent: bool, by_default: bool) -> None:
    if by_default:
        multiprocessing.set_start_method(context)
    loader = DataLoader(
        Rows(),
        batch_size=8,
        shuffle=True,
        num_workers=1,  # each imports torch
        multiprocessing_context=None if by_default else context,
        persistent_workers=persistent,
    )
    feeder = penstock.Feeder(loader, "contexts")
    thread = threading.Thread(target=feeder.run)
    thread.start()
    with penstock.attach("contexts") as trainer:
        for _ in range(2):
            seen: list[int] = []
            for rows, numbers in trainer:
                assert (rows == (numbers % 251).to(torch.uint8)[:, None]).all()
                seen += numbers.tolist()
            assert sorted(seen) == list(range(320))
    statistics = feeder.statistics()
    feeder.close()
    thread.join()
    assert 1 <= statistics.blocks - statistics.blocks_in_place <= 2 + 1, statistics


if __name__ == "__main__":
    main(sys.argv[1], "persistent" in sys.argv, "default" in sys.argv)
