"""A sampler of selected samples goes on exactly in torchdata's loader, and Accelerate deals what it gives."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.frameworks.groups import FOLDER, PYTHON, environment_in


def lines_of(folder: Path, *words: str) -> list[list[str]]:
    assert PYTHON.exists(), "make test-frameworks makes the environment"
    done = subprocess.run(
        [PYTHON, *words], env=environment_in(folder), check=False, capture_output=True, text=True, timeout=200
    )
    assert not done.returncode, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.parametrize("kind", ["fixed", "policy"])
@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("batches", ["3", "13"])
def test_an_epoch_goes_on_behind_the_batch_that_was_handed_over(
    kind: str, workers: str, batches: str, tmp_path: Path
) -> None:
    seen, whole = lines_of(tmp_path, str(FOLDER / "sampler_in_torchdata.py"), kind, workers, batches)
    assert len(whole) == 150
    assert seen == whole


def test_accelerate_deals_the_selected_samples_to_its_ranks(tmp_path: Path) -> None:
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    lines = lines_of(tmp_path, *ranks, str(FOLDER / "sampler_in_accelerate.py"))
    for epoch in ("0", "1"):
        given = [line[2:] for line in lines if line[:2] == ["ids", epoch]]
        assert [len(rank) for rank in given] == [20, 20]
        assert sorted(int(id) for rank in given for id in rank) == [*range(40, 80)]
