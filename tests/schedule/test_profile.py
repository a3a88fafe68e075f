"""What runs take is measured of the runs themselves, whatever their loaders, and nothing of it is left."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.fakes.nvml.by_number import by_number
from tests.fakes.nvml.fake_gpus import FakeGpus
from tests.runs.running import nothing_is_left

import penstock
from penstock import waits
from penstock.autosharing.options import ShareOptions
from penstock.runs.inside.phases import Stretch
from penstock.runs.launch.launcher import Launcher
from penstock.runs.record import RunPlan
from penstock.runs.store import Store
from penstock.schedule.profile import NotProfiled, costs_of, profiled
from penstock.schedule.profiles import Profile, data_of

pytestmark = pytest.mark.whole

SYNTHETIC = Path(__file__).parent / "synthetic_job.py"
PREPARE_S, OWN_S, STEP_S = 0.010, 0.001, 0.02  # on a slow machine a DataLoader itself takes 0.6 ms a sample


def stretches(**phases: dict[str, Any]) -> list[Stretch]:
    """A run's stretches, one a phase."""
    named = {"as_it_is": "as it is"}
    start = Stretch(phase="start", until_s=1.0, own_s=3.0)
    found = [Stretch(phase=named.get(name, name), until_s=2.0, **each) for name, each in phases.items()]  # type: ignore[arg-type]
    return [start, *found]


REPLAY = {"seconds": 2.0, "samples": 100.0, "own_s": 0.5}


def costs(**phases: dict[str, Any]) -> tuple[float, float, float, float]:
    found = costs_of(stretches(**phases))
    assert found
    return found.preparation_s, found.own_s, found.gpu_s, found.start_s


@pytest.mark.parametrize(
    ("loader", "prepared_s", "own_s"),
    [
        # By a feed, whose trainer copies; by workers; and in the script's own process.
        ({"samples": 200.0, "own_s": 0.2, "feed": "f", "feeder_s": 4.0, "published": 400}, 0.01, 0.006),
        ({"samples": 200.0, "own_s": 0.2, "children_s": 4.0}, 0.02, 0.006),
        ({"samples": 200.0, "own_s": 4.0}, 0.02, 0.005),
    ],
)
def test_preparation_is_charged_to_who_does_it(loader, prepared_s, own_s):
    assert costs(loader=loader, replay=REPLAY) == pytest.approx((prepared_s, own_s, 0.02, 3.0))


def test_an_only_epoch_tells_preparation_as_it_is():
    as_it_is = {"samples": 50.0, "own_s": 1.25}
    assert costs(as_it_is=as_it_is, replay=REPLAY) == pytest.approx((0.02, 0.005, 0.02, 3.0))


def test_what_was_loaded_ahead_does_not_count():
    settles = Stretch(phase="loader", until_s=2.0, samples=900.0, own_s=0.1, settles=True)
    found = costs_of([*stretches(loader={"samples": 200.0, "own_s": 4.0}, replay=REPLAY), settles])
    assert found and found.preparation_s == pytest.approx(0.02)


def test_what_only_came_out_of_a_window_tells_no_preparation():
    window = {"samples": 500.0, "own_s": 0.1, "feed": "f"}
    as_it_is = {"samples": 50.0, "own_s": 0.3, "feed": "f", "feeder_s": 4.0, "published": 400}
    assert costs(as_it_is=as_it_is, loader=window, replay=REPLAY) == pytest.approx((0.01, 0.006, 0.02, 3.0))


def test_a_feed_starts_with_what_it_took_besides_preparing():
    start, *others = stretches(
        loader={"samples": 200.0, "feed": "f", "feeder_s": 4.0, "published": 400}, replay=REPLAY
    )
    found = costs_of([replace(start, feed="f", feeder_s=3.5, published=100), *others])
    assert found and found.feed_start_s == pytest.approx(2.5)


def test_without_a_replay_nothing_is_known():
    assert costs_of(stretches(as_it_is={"samples": 50.0, "own_s": 1.25})) is None


def test_a_loop_that_is_not_profiled_stays_as_it_is():
    assert waits.in_phases(len) is len


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as store:
        yield store
        assert not store.runs()
        assert not [path for path in store.folder.iterdir() if path.is_dir()]
    assert not penstock.feeds()
    nothing_is_left(tmp_path)


def plan(folder: Path, *words: str, share: bool = False) -> RunPlan:
    options = ShareOptions() if share else None
    return RunPlan(command=(sys.executable, *words), name="run", directory=str(folder), share=options)


def synthetic(folder: Path, form: str, *, samples: int = 400, epochs: int = 1000, share: bool = False) -> RunPlan:
    numbers = (PREPARE_S, OWN_S, STEP_S, samples, epochs)
    return plan(folder, str(SYNTHETIC), form, *map(str, numbers), share=share)


def check(found: Profile) -> None:
    """Check a profile by what the script does; CPU time counts, and so the others of this machine do not."""
    assert found.preparation_s == pytest.approx(PREPARE_S, rel=0.1)
    assert OWN_S <= found.own_s < 3 * OWN_S
    assert STEP_S <= found.gpu_s < 2 * STEP_S
    assert 0.05 < found.start_s < 20
    assert found.memory_bytes and found.memory_bytes > 20 << 20
    assert found.sm_share == 1.0


def test_a_feed_is_profiled_and_ended(store: Store, tmp_path: Path):
    phases = list[str]()
    found = profiled(store, synthetic(tmp_path, "numpy"), on_phase=phases.append)
    check(found)
    assert found.data.startswith("synthetic:") and found.feed_start_s > 0.02
    assert [*dict.fromkeys(phases)] == ["start", "as it is", "loader", "replay", "over"]
    assert not (tmp_path / "trained").exists()


def test_a_script_with_one_short_epoch_is_profiled_before_that_ends(store: Store, tmp_path: Path):
    found = profiled(store, synthetic(tmp_path, "numpy", samples=200, epochs=1))
    assert found.preparation_s == pytest.approx(PREPARE_S, rel=0.25)
    assert STEP_S <= found.gpu_s < 2 * STEP_S
    assert found.samples_per_epoch in (None, 200)
    assert (tmp_path / "trained").exists()  # its loop ended as it would have


@pytest.mark.whole
@pytest.mark.parametrize(("form", "share"), [("share", False), ("2", True), ("2", False), ("0", False)])
def test_each_way_to_load_is_profiled(store: Store, tmp_path: Path, form: str, share: bool):
    found = profiled(store, synthetic(tmp_path, form, share=share))
    check(found)
    assert found.samples_per_epoch == 400
    assert bool(found.data) == (share or form == "share")


FEW = """
import itertools, time, penstock, numpy as np
for batch in penstock.share(lambda: penstock.ArraySource(np.arange(900), batch_size=9), "few", linger=0.1):
"""


UNCOUNTED = """
from torch.utils.data import DataLoader
for number in DataLoader(range(10**9), batch_size=None): pass
"""
NO_BATCH = "run: no loop that trains got a batch of a DataLoader or a feed"


@pytest.mark.parametrize(
    ("script", "limit_s", "why"),
    [
        ("print('no loader')", 60, NO_BATCH),
        ("1 / 0", 60, "run: failed before its first batch: ZeroDivisionError: division by zero"),
        ("import time; time.sleep(99)", 2, f"{NO_BATCH} within 2 s"),
        (
            UNCOUNTED,
            60,
            "run: nobody can count its batches' samples: give its loader a batch_size, or schedule it as it is",
        ),
        (FEW + "    time.sleep(99)", 10, "run: it got too few batches to be measured"),
        (FEW + "    1 / 0", 60, "run: failed while it was measured: ZeroDivisionError: division by zero"),
    ],
    ids=[
        "without loaders",
        "dies at once",
        "hangs at once",
        "counts nothing",
        "hangs in a step",
        "dies in a step",
    ],
)
def test_what_cannot_be_profiled_is_told_in_one_line(
    store: Store, tmp_path: Path, script: str, limit_s: float, why: str
):
    with pytest.raises(NotProfiled) as told:
        profiled(store, plan(tmp_path, "-c", script), limit_s=limit_s)
    assert str(told.value) == why


def test_a_start_that_fails_is_told_and_leaves_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Launcher, "start", full)
    with pytest.raises(OSError, match="no space left"):
        profiled(store, plan(tmp_path, "-c", ""))


@pytest.mark.usefixtures("forks_feeders")
def test_data_are_named_alike_whatever_the_suffix_of_their_feed(monkeypatch: pytest.MonkeyPatch):
    named = set[str]()
    for suffix in ("abc1-123456", "abc23-123456", "abc4"):
        monkeypatch.setenv("PENSTOCK_FEED_SUFFIX", suffix)
        with penstock.share(partial(penstock.ArraySource, np.arange(9)), "my-abc-data", linger=0) as loader:
            named.add(data_of(loader.name, r"abc\d+"))
    assert len(named) == 1 and re.fullmatch("my-abc-data:[0-9a-f]{16}", *named)


def test_a_run_on_two_gpus_is_not_started(store: Store, tmp_path: Path):
    two = replace(plan(tmp_path, "-c", "open('started', 'w')"), gpus=2)
    with pytest.raises(NotProfiled, match=r"^run: only runs on one GPU are profiled, and it asks for 2$"):
        profiled(store, two)
    assert not (tmp_path / "started").exists()


@by_number
def test_of_a_gpu_its_memory_and_its_busy_part_are_taken(
    store: Store, tmp_path: Path, fake_gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", fake_gpus.environment["PYTHONPATH"])
    fake_gpus.add(gpm={"2": 40.0})  # NVML_GPM_METRIC_SM_UTIL

    def on_phase(phase: str) -> None:
        pid = store.runs()[0].pid
        fake_gpus.set(0, processes=[[pid, 3 << 30, None]] if pid else [])

    found = profiled(store, synthetic(tmp_path, "numpy"), has_gpus=True, limit_s=14, on_phase=on_phase)
    assert found.sm_share == pytest.approx(0.4)
    assert found.memory_bytes == pytest.approx((3 << 30) / 0.95)


@by_number
def test_memory_on_a_gpu_that_nobody_tells_is_unknown(
    store: Store, tmp_path: Path, fake_gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", fake_gpus.environment["PYTHONPATH"])
    fake_gpus.add()
    assert profiled(store, synthetic(tmp_path, "numpy"), has_gpus=True, limit_s=8).memory_bytes is None
