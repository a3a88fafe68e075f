"""`penstock run` on a machine with GPUs: what is sampled, and kept, of them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fakes.nvml.by_number import by_number
from tests.fakes.nvml.fake_gpus import FakeGpus
from tests.forked import eventually
from tests.runs.running import Launch

from penstock.runs.store import Store

ON_GPU = """
import os, sys, time
sys.path.insert(0, os.environ["ROOT"])
from pathlib import Path
from tests.fakes.nvml.fake_gpus import FOLDER, edited
with edited(Path(os.environ[FOLDER])) as state:
    state["gpus"][1]["processes"] = [[os.getpid(), 3 << 30]]
while not os.path.exists("go"):
    time.sleep(0.02)
with edited(Path(os.environ[FOLDER])) as state:
    state["gpus"][1]["processes"] = []
"""


@pytest.fixture
def start(fake_gpus: FakeGpus, launch: Callable[..., Launch]) -> Callable[..., Launch]:
    root = str(Path(__file__).parents[2])
    return lambda *words, **more: launch(*words, **{**fake_gpus.environment, "ROOT": root, **more})


@pytest.mark.whole
@by_number
def test_a_run_keeps_its_gpus_series_and_its_part_of_their_energy(start, fake_gpus: FakeGpus, tmp_path: Path):
    hidden, mine = fake_gpus.add(), fake_gpus.add(power_mw=100_000)
    assert hidden != mine
    fake_gpus.count_energy(1)
    words = ("--listeners", "gpu,gpm,energy", "--carbon-intensity", "360", sys.executable, "-c", ON_GPU)
    run = start(*words, CUDA_VISIBLE_DEVICES="1")
    with Store.open(tmp_path / "store") as store:
        (record,) = eventually(run.records)

        def most(name: str) -> float:
            return max(store.series(record.id)[name].values) if name in store.series(record.id) else 0

        eventually(lambda: run.ended or most("energy.estimated_gpu_j") > 0)
        (tmp_path / "go").touch()
        assert run.wait() == 0, run.errors
        series = store.series(record.id)
        kept = json.loads((store.folder_of(record.id) / "environment.json").read_text())
    assert kept["gpus"] == [mine]
    assert series["gpu.memory_bytes"].values.max() == 3 << 30
    assert series["gpu.0.power_w"].values.max() == 100
    measured, estimated = series["energy.gpu0_j"].values.max(), series["energy.estimated_gpu_j"].values.max()
    assert 0 < estimated <= measured * (1 + 1e-9)
    joules = series["energy.estimated_j"].values[-1]
    assert series["energy.estimated_gco2"].values[-1] == pytest.approx(joules * 360 / 3.6e6)
    assert not [name for name in series if ".1." in name]


@pytest.mark.parametrize("intensity", ["-1", "much", "nan"])
def test_an_intensity_that_is_none_is_refused_before_anything_starts(start, intensity: str):
    option, variable = ("--carbon-intensity", intensity), {"PENSTOCK_CARBON_INTENSITY": intensity}
    for words, environment in ((option, {}), ((), variable)):
        run = start(*words, sys.executable, "-c", "print('began')", **environment)
        assert run.wait() == 2
        assert "carbon" in run.errors.lower()
        assert not run.output


def test_without_a_gpu_a_run_goes_on_and_says_only_how_it_ended(start):
    run = start(sys.executable, "-c", "print('began')", PATH=os.environ["PATH"])
    assert run.wait() == 0
    assert run.output == "began\n"
    assert run.errors.count("\n") == 1 and ": finished, after " in run.errors
