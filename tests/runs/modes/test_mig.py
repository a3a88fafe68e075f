"""Mode mig, on fake GPUs behind NVML's own Python binding: real launchers, keepers and makers of instances."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.fakes.nvml.fake_gpus import FakeGpus
from tests.runs.running import UNWATCHED, Launch

pytestmark = pytest.mark.whole

SHOW = [sys.executable, "-c", "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"]


@pytest.fixture
def start(fake_gpus: FakeGpus, launch: Callable[..., Launch]) -> Callable[..., Launch]:
    return lambda *words, **more: launch(*words, **{**fake_gpus.environment, **more})


@pytest.fixture
def unwatched(start: Callable[..., Launch]) -> Callable[..., Launch]:
    return partial(start, *UNWATCHED)


def by_name(run: Launch) -> dict[str, str]:
    """The instance that each run has said."""
    return {line.split()[0]: line.split()[-1] for line in run.output.splitlines() if "MIG-" in line}


def shown(run: Launch) -> list[str]:
    return sorted(by_name(run).values())


def test_each_run_has_an_instance_of_the_profile_to_itself(start, fake_gpus: FakeGpus):
    fake_gpus.add()
    fake_gpus.add()
    two = [fake_gpus.add_mig(0, "1g.10gb"), fake_gpus.add_mig(1, "1g.10gb")]
    fake_gpus.add_mig(0, "3g.40gb")
    run = start("-n", "2", "--mode", "mig:1g.10gb", *SHOW)
    assert run.wait() == 0, run.errors
    assert shown(run) == sorted(two)
    assert [record.mode for record in run.records()] == ["mig:1g.10gb"] * 2


@pytest.mark.parametrize(
    ("mig", "words", "said"),
    [
        ([0, 0], ("--mode", "mig:4g.99gb"), "there are 1g.10gb, 2g.20gb, 3g.40gb, 7g.80gb"),
        ([0, 0], ("--mode", "mig:"), "mig: with a profile"),
        (None, ("--mode", "mig:1g.10gb"), "they have no MIG"),
        ([0, 0], ("--mode", "mig:1g.10gb,3g.40gb"), "--mode: 2 MIG profiles for 1 runs; name one for all"),
        ([0, 0], ("-n", "3", "--mode", "mig:1g.10gb,3g.40gb"), "--mode: 2 MIG profiles for 3 runs; name one"),
        (
            [0, 0],
            ("--devices", "1", "--mode", "mig:1g.10gb"),
            "-i 1 -mig 1; sudo nvidia-smi mig -i 1 -cgi 1g.10gb",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(unwatched, fake_gpus: FakeGpus, mig, words, said: str):
    fake_gpus.add(mig=mig)
    fake_gpus.add(mig=mig)
    run = unwatched(*words, *SHOW)
    assert run.wait() == 2
    assert said in " ".join(run.errors.split())
    assert not run.output


def test_fewer_instances_than_runs_are_one_error_that_names_them_and_the_remedies(unwatched, fake_gpus: FakeGpus):
    fake_gpus.add()
    mine, other = fake_gpus.add_mig(0, "1g.10gb"), fake_gpus.add_mig(0, "3g.40gb")
    run = unwatched("-n", "2", "--mode", "mig:1g.10gb", *SHOW)
    assert run.wait() == 2
    said = " ".join(run.errors.split())
    assert f"1 more than there are for them; in sight: 1g.10gb {mine}, 3g.40gb {other}" in said
    assert "nvidia-smi mig -i 0 -cgi 1g.10gb -C" in said
    assert not run.output
    assert len(fake_gpus.migs(0)) == 2


def test_runs_that_name_devices_have_instances_of_these(start, fake_gpus: FakeGpus, tmp_path: Path):
    for index in (0, 1):
        fake_gpus.add()
        fake_gpus.add_mig(index, "1g.10gb")
    second = fake_gpus.migs(1)[0]
    (tmp_path / "runs.yaml").write_text(
        "groups:\n- mode: mig:1g.10gb\n  runs:\n"
        f"  - {{command: show.py, name: any}}\n  - {{command: show.py, name: second, devices: ['{second}']}}\n"
    )
    (tmp_path / "show.py").write_text(SHOW[-1])
    run = start("runs.yaml")
    assert run.wait() == 0, run.errors
    assert by_name(run) == {"any": fake_gpus.migs(0)[0], "second": second}


def test_a_table_of_radts_gives_each_row_an_instance_of_its_profile(start, fake_gpus: FakeGpus, tmp_path: Path):
    fake_gpus.add(mig=[1, 1])
    small, large = fake_gpus.add_mig(0, "1g.10gb"), fake_gpus.add_mig(0, "3g.40gb")
    (tmp_path / "show.py").write_text(SHOW[-1])
    (tmp_path / "runs.csv").write_text(
        "Experiment,Workload,Name,Status,Run,Devices,Collocation,File,Listeners,Params\n"
        "1,1,large,,,,3g.40gb,show.py,smi+dcgmi,-\n1,1,small,,,,1g.10gb,show.py,smi+dcgmi,-\n"
    )
    run = start("runs.csv")
    assert run.wait() == 0, run.errors
    assert by_name(run) == {"small": small, "large": large}
