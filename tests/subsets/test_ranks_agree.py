"""Ranks that report to an InfoBatch each hold one selection, and no sample twice."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch.distributed
from tests.forked import Forked, ForkServer

from penstock import SelectionSampler, select

EPOCHS, SAMPLES = 6, 100


def train(rank: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    policy = select.InfoBatch(SAMPLES, epochs=EPOCHS)
    sampler = SelectionSampler(policy, rank=rank, num_replicas=2)
    epochs = []
    for _ in range(EPOCHS):
        ids = np.array(list(sampler))
        epochs.append({"ids": ids, "selected": policy.selection(len(epochs)).ids})
        policy.report(ids, ids + 1e-3 * rank)
    np.save(f"{folder}/{rank}.npy", np.array(epochs, object))
    torch.distributed.destroy_process_group()


@pytest.mark.whole
def test_ranks_exchange_what_they_report(servers: dict[str, ForkServer], tmp_path: Path) -> None:
    ranks = [Forked(servers["torch"], __file__, [str(i), str(tmp_path)], tmp_path / f"{i}.out") for i in range(2)]
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].output
    one, other = (np.load(tmp_path / f"{rank}.npy", allow_pickle=True) for rank in range(2))
    for epoch in range(EPOCHS):
        assert np.array_equal(one[epoch]["selected"], other[epoch]["selected"])
        both = np.concatenate([one[epoch]["ids"], other[epoch]["ids"]])
        assert set(both.tolist()) == set(one[epoch]["selected"].tolist())
        assert len(both) - len(set(both.tolist())) <= 1  # dealt evenly, one may come twice
    assert [len(each["selected"]) for each in one] == [100, 75, 75, 75, 75, 100]


if __name__ == "__main__":
    train(int(sys.argv[1]), sys.argv[2])
