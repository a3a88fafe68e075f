"""Traces: what they say becomes jobs, what they leave out is counted, and what is wrong is one error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.schedule.traces import SYNERGY, drawn, read_trace

from penstock.errors import BadSetting


def gavel(tmp_path: Path, *lines: str) -> str:
    small, large = "('ResNet-18 (batch size 32)', 1)", "('ResNet-18 (batch size 32)', 16)"
    rates = {"v100": {small: {"null": 10.0, small: [4.0, 4.0]}, large: {"null": 80.0}}}
    (tmp_path / "gavel-simulation_throughputs.json").write_text(json.dumps(rates))
    path = tmp_path / "x.trace"
    path.write_text("\n".join(lines) + "\n")
    return f"gavel:{path}"


def test_gavels_steps_become_samples_and_its_pairs_parts_of_the_rate_alone(tmp_path: Path) -> None:
    kind = "ResNet-18 (batch size 32)"
    text = gavel(
        tmp_path,
        "\t".join(
            [kind, "python3 main.py --data_dir=%s/cifar10", "cifar", "--n", "1", "500", "1", "2", "-1", "7"]
        ),
        "\t".join([kind, "cd %s/x && python3 main.py --data_dir=%s/cifar10", "--n", "1", "500", "60", "16"]),
    )
    trace = read_trace(text, gpus=8)
    (job,) = trace.jobs
    assert (job.samples, job.gpu_s, job.preparation_s) == (500 * 32, 1 / 320, 9 / 320)
    assert (job.data, job.priority, job.arrives_s) == ("cifar10", 2, 7)
    assert trace.pairs == {(job.kind, job.kind): 0.4}
    assert trace.left_out == {"need more than 8 GPUs": 1}
    assert [each.data for each in read_trace(text, gpus=16).jobs] == ["cifar10", "cifar10"]


def test_muris_and_tiresias_jobs_are_read(tmp_path: Path) -> None:
    path = tmp_path / "muri.csv"
    path.write_text(
        "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
        "resource_time_0,resource_time_1,resource_time_2,priority\n"
        "0,2,1000,100,vgg16,16,281000,28000,214,80,64,16,1\n1,1,0,5,bert,4,1,1,1,0.5,160,0,1\n"
    )
    first, second = read_trace(f"muri:{path}", gpus=4).jobs
    assert (first.samples, first.gpu_s, first.gpus, first.arrives_s) == (1600, 0.005, 2, 1.0)
    assert first.preparation_s == pytest.approx(4 * 0.005) and (first.data, second.data) == ("images", "")
    path.write_text(
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n1,1,30,600,vgg19,150,30\n"
    )
    (job,) = read_trace(f"tiresias:{path}", gpus=1).jobs
    assert (job.samples, job.gpu_s, job.arrives_s) == (600, 0.25, 30)


def test_drawn_jobs_are_the_same_for_a_seed_and_only_images_share() -> None:
    assert drawn(50, 0.5, 3) == drawn(50, 0.5, 3) != drawn(50, 0.5, 4)
    some = drawn(200, 0.5, 3).jobs
    assert 60 < sum(job.data == "images" for job in some) < 140
    for job in some:
        assert 600 <= job.samples * job.gpu_s <= 3600
        assert job.preparation_s / job.gpu_s == pytest.approx(SYNERGY[job.kind].cores)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("nowhere.json", "cannot be read"),
        ("gavel:nowhere.trace", "cannot be read"),
        ("synergy:none", "from 1 to 10,000"),
        ("{tmp}/list.json", "is not a JSON list of jobs"),
        ("muri:{tmp}/list.json", "is not a trace of Muri's"),
        ("{tmp}/twice.json", "two jobs have one name"),
        ("{tmp}/free.json", "'a' has no samples, costs nothing"),
        ("{tmp}/lost.json", "comes after 'b'"),
        ("{tmp}/key.json", "unknown field `colour`"),
        ("{tmp}/gang.json", "no job that fits on 2 GPUs"),
    ],
)
def test_what_is_no_trace_is_one_error(tmp_path: Path, text: str, error: str) -> None:
    job: dict[str, Any] = {"name": "a", "samples": 1, "preparation_s": 1, "gpu_s": 1}
    (tmp_path / "list.json").write_text('[{"name": "a"}]')
    (tmp_path / "twice.json").write_text(json.dumps([job, job]))
    (tmp_path / "free.json").write_text(json.dumps([{**job, "gpu_s": 0, "preparation_s": 0}]))
    (tmp_path / "lost.json").write_text(json.dumps([{**job, "after": ["b"]}]))
    (tmp_path / "key.json").write_text(json.dumps([{**job, "colour": "red"}]))
    (tmp_path / "gang.json").write_text(json.dumps([{**job, "gpus": 4}]))
    with pytest.raises(BadSetting, match=error):
        read_trace(text.format(tmp=tmp_path), gpus=2)
