"""GPUs as the page is told of them, over a library made for the test."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.fakes.nvml.by_number import by_number
from tests.fakes.nvml.fake_gpus import FakeGpus
from tests.web.seeded import group

from penstock.gpus.nvml import nvml
from penstock.web.live import GpuLook

SM_ACTIVE = {"2": 81.0}


@pytest.fixture
def gpus(store):
    made = GpuLook(store)
    yield made
    made.close()


def test_a_gpu_is_shown_as_nvml_measures_it(fake_gpus: FakeGpus, gpus: GpuLook) -> None:
    fake_gpus.add(gpm=SM_ACTIVE, utilisation=97, used_bytes=5 << 30, power_mw=412_500, temperature_c=71)
    [first] = gpus.look([]).cards
    [card] = gpus.look([]).cards
    assert first.units[0].sm_active_percent is None  # a first look has no interval
    assert (card.index, card.name) == (0, "NVIDIA H100 80GB HBM3")
    assert card.readings["utilisation_percent"] == 97 and card.readings["power_w"] == 412.5
    [unit] = card.units
    assert (unit.sm_active_percent, unit.used_bytes, unit.memory_bytes) == (81, 5 << 30, 80 << 30)
    assert (unit.profile, unit.runs, unit.others) == ("", {}, 0)


@by_number
def test_a_run_is_on_the_gpu_that_lists_a_process_below_its_keeper(
    store, fake_gpus: FakeGpus, gpus: GpuLook
) -> None:
    [run] = group(store, "goes", status=None)  # kept by this process
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        fake_gpus.add(processes=[[child.pid, 2 << 20], [1, 5 << 20]])
        fake_gpus.add(mps_processes=[[os.getpid(), 1 << 20], [child.pid, None]])
        cards = gpus.look([run.id]).cards
        assert [card.units[0].runs for card in cards] == [{run.id: 2 << 20}, {run.id: None}]
        assert [card.units[0].others for card in cards] == [1, 0]
        assert [card.units[0].others for card in gpus.look([]).cards] == [2, 2]
    finally:
        child.communicate()


@by_number
def test_a_run_is_on_its_instance_of_a_gpu_in_mig_mode(store, fake_gpus: FakeGpus, gpus: GpuLook) -> None:
    [run] = group(store, "goes", status=None)
    fake_gpus.add(gpm=SM_ACTIVE)
    fake_gpus.add_mig(0, "1g.10gb")
    fake_gpus.add_mig(0, "2g.20gb")
    fake_gpus.set(0, processes=[[os.getpid(), 1 << 20, 2]])
    gpus.look([run.id])
    [card] = gpus.look([run.id]).cards
    assert [unit.profile for unit in card.units] == ["1g.10gb", "2g.20gb"]
    assert [unit.runs for unit in card.units] == [{}, {run.id: 1 << 20}]
    assert [unit.sm_active_percent for unit in card.units] == [81, 81]
    assert "utilisation_percent" not in card.readings and "power_w" in card.readings


def test_what_nvml_does_not_tell_is_absent_and_a_lost_gpu_is_gone(fake_gpus: FakeGpus, gpus: GpuLook) -> None:
    fake_gpus.add(gpm=None)
    fake_gpus.add()
    fake_gpus.refuse("nvmlDeviceGetPowerUsage", 3, 0)
    cards = gpus.look([]).cards
    assert cards[0].units[0].sm_active_percent is None and "power_w" not in cards[0].readings
    fake_gpus.refuse("*", 15, 0)
    assert [card.index for card in gpus.look([]).cards] == [1]
    fake_gpus.refuse("nvmlDeviceGetCount", 999)
    assert gpus.look([]).cards == () and "nvmlDeviceGetCount" in gpus.look([]).note


def test_without_nvml_one_sentence_says_why(store, gpus: GpuLook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    nvml.cache_clear()
    told = gpus.look([])
    assert told.cards == () and "nvidia-ml-py is not installed" in told.note
    monkeypatch.undo()
    nvml.cache_clear()
    assert "not installed" not in gpus.look([]).note, "it may come while the page is open"


def test_samples_are_freed_once_nobody_looks(fake_gpus: FakeGpus, gpus: GpuLook) -> None:
    import pynvml

    fake_gpus.add(gpm=SM_ACTIVE)
    gpus.look([])
    assert len(pynvml.samples) == 2
    gpus.close()
    assert not pynvml.samples
