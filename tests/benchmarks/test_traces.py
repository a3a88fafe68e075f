"""Traces: what they say becomes jobs, and what they leave out is counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.schedule.traces import SYNERGY, drawn, gavel


def written(tmp_path: Path, *lines: str) -> Path:
    small, large = "('ResNet-18 (batch size 32)', 1)", "('ResNet-18 (batch size 32)', 16)"
    rates = {"v100": {small: {"null": 10.0, small: [4.0, 4.0]}, large: {"null": 80.0}}}
    (tmp_path / "gavel-simulation_throughputs.json").write_text(json.dumps(rates))
    path = tmp_path / "x.trace"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_gavels_steps_become_samples_and_its_pairs_parts_of_the_rate_alone(tmp_path: Path) -> None:
    kind = "ResNet-18 (batch size 32)"
    path = written(
        tmp_path,
        "\t".join(
            [kind, "python3 main.py --data_dir=%s/cifar10", "cifar", "--n", "1", "500", "1", "2", "-1", "7"]
        ),
        "\t".join([kind, "cd %s/x && python3 main.py --data_dir=%s/cifar10", "--n", "1", "500", "60", "16"]),
    )
    trace = gavel(path, gpus=8)
    (job,) = trace.jobs
    assert (job.samples, job.gpu_s, job.preparation_s) == (500 * 32, 1 / 320, 9 / 320)
    assert (job.data, job.priority, job.arrives_s) == ("cifar10", 2, 7)
    assert trace.pairs == {(job.kind, job.kind): 0.4}
    assert trace.left_out == 1
    assert [each.data for each in gavel(path, gpus=16).jobs] == ["cifar10", "cifar10"]


def test_drawn_jobs_are_the_same_for_a_seed_and_only_images_share() -> None:
    assert drawn(50, 0.5, 3) == drawn(50, 0.5, 3) != drawn(50, 0.5, 4)
    some = drawn(200, 0.5, 3)
    assert 60 < sum(job.data == "images" for job in some) < 140
    for job in some:
        assert 600 <= job.samples * job.gpu_s <= 3600
        assert job.preparation_s / job.gpu_s == pytest.approx(SYNERGY[job.kind].cores)
