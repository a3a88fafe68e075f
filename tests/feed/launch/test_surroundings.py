"""What a feed takes over of the run that starts it, and where its ring lies if it cannot have that run's GPU."""

from __future__ import annotations

import functools
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.gpu import FakeGpu
from tests.feed.numbered import SAMPLES, ids_of, ids_of_host, rows
from tests.forked import eventually

import penstock
from penstock.basics import terminal
from penstock.errors import DeviceUnavailable
from penstock.feed.launch import process
from penstock.feed.launch.surroundings import feeders_environment
from penstock.memory import gpu_ring

CLIENT = {
    "CUDA_MPS_PIPE_DIRECTORY": "/run/pipes",
    "CUDA_MPS_LOG_DIRECTORY": "/run/log",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1024M",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
}


@pytest.mark.parametrize(
    ("mode", "kept"),
    [
        ({"PENSTOCK_MODE": "mps"}, {"PENSTOCK_MODE"}),
        ({"PENSTOCK_MODE": "mig"}, {"PENSTOCK_MODE", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"}),
        ({}, {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"}),
    ],
)
def test_a_feeder_has_no_trainings_limits_and_is_no_client_of_a_daemon_that_ends_with_runs(mode, kept):
    found = feeders_environment({**CLIENT, **mode, "PATH": "/bin"})
    assert set(found) == kept | {"PATH"}


def rows_and_surroundings(told: str) -> Any:
    """For ``share``: the feeder tells what it finds in its environment."""
    Path(told).write_text("\n".join(os.environ))
    return rows()


@pytest.mark.usefixtures("forks_feeders_with_torch")
@pytest.mark.parametrize(("mode", "why"), [("mps", "the MPS daemon"), ("mig", "an instance of its own")])
def test_a_feed_that_outlives_a_runs_gpu_is_on_the_host_and_says_so(monkeypatch, capfd, tmp_path, mode, why):
    monkeypatch.setattr(terminal, "_said", set())
    for name, value in {**CLIENT, "PENSTOCK_MODE": mode}.items():
        monkeypatch.setenv(name, value)
    told = tmp_path / "told"
    make = functools.partial(rows_and_surroundings, str(told))
    with (
        penstock.share(make, "feed", memory="cuda:0", linger=1.0) as one,
        penstock.share(make, "feed", memory="cuda:0", linger=1.0) as other,
    ):
        assert one.statistics().feeder_pid == other.statistics().feeder_pid
        said = capfd.readouterr().err
        assert said.count("feed 'feed' has its ring on the host, not on cuda:0: ") == 1 and why in said
        (feed,) = penstock.feeds()
        assert feed.sharing.startswith("host memfd (") and why in feed.sharing
        assert sum(len(batch["id"]) for batch in one) == SAMPLES
    kept = set() if mode == "mps" else {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"}
    assert set(told.read_text().split()) & set(CLIENT) == kept


def make_on_a_gpu_that_may_be_full(full: str, patience_s: float) -> Any:
    """For ``share``: the feeder's GPU has no room while a file is there."""

    def gpu_of(memory: Any) -> Any:
        if memory != "host" and Path(full).exists():
            Path(full).with_suffix(".seen").touch()
            raise DeviceUnavailable("CUDA refused: it is a test")
        return FakeGpu(5) if memory != "host" else None

    gpu_ring.gpu_of = gpu_of
    process._FULL_S = patience_s
    return rows(1000)


class Failing(FakeGpu):
    """A GPU that fails, for good, once a file is there."""

    def __init__(self, fails: Path) -> None:
        super().__init__(5)
        self._fails = fails

    def copy(self, *args: Any, **options: Any) -> None:
        if self._fails.exists():
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        super().copy(*args, **options)

    def synchronize(self) -> None:
        if self._fails.exists():
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        super().synchronize()


def make_on_a_gpu_that_fails(fails: str) -> Any:
    """For ``share``: the feeder's GPU fails once a file is there."""
    gpu_ring.gpu_of = lambda memory: None if memory == "host" else Failing(Path(fails))  # type: ignore[assignment]
    return rows(1000)


@pytest.mark.usefixtures("forks_feeders_with_torch")
def test_a_gpu_that_fails_its_feeder_ends_no_training(tmp_path: Path) -> None:
    fails = tmp_path / "fails"
    make = functools.partial(make_on_a_gpu_that_fails, str(fails))
    options: Any = {"memory": "cuda:0", "linger": 1.0, "window": "8KiB"}
    with (
        penstock.share(make, "feed", 10, device=FakeGpu(1), **options) as loader,
        penstock.share(make, "feed", 7, **options) as other,
        ThreadPoolExecutor() as threads,
    ):
        batches = iter(loader)
        seen = ids_of(batches, most=2)
        rest = threads.submit(ids_of_host, other)
        seen += ids_of(batches, most=18)
        fails.touch()
        seen += ids_of(batches)
        assert "its GPU failed" in penstock.feeds()[0].sharing
        loader.close()  # who has had its epoch would hold the other back
        assert (sorted(seen), sorted(rest.result())) == (list(range(1000)), list(range(1000)))
        assert other.statistics().failovers == 1


@pytest.mark.usefixtures("forks_feeders_with_torch")
@pytest.mark.parametrize(
    ("frees", "views"),
    [(False, False), (True, False), (False, True)],
    ids=["full for good", "full for a while", "no views any more"],
)
def test_a_failover_that_finds_the_gpu_full_waits_and_goes_on_from_the_host(
    tmp_path: Path, capfd: Any, frees: bool, views: bool
) -> None:
    full = tmp_path / "full"
    make = functools.partial(make_on_a_gpu_that_may_be_full, str(full), 60.0 if frees else 0.5)
    seen: list[int] = []
    options: Any = {"memory": "cuda:0", "linger": 1.0, "window": "8KiB", "borrow": views}
    with penstock.share(make, "feed", 10, device=FakeGpu(1), **options) as loader:
        batches = iter(loader)
        seen += ids_of(batches, most=20)
        assert loader.statistics().sharing == "ring on GPU-00000000-fake"
        full.touch()
        os.kill(loader.statistics().feeder_pid, signal.SIGKILL)
        with ThreadPoolExecutor() as threads:
            rest = threads.submit(ids_of, batches)
            eventually(full.with_suffix(".seen").exists)
            if frees:
                full.unlink()
            seen += rest.result()
        assert sorted(seen) == list(range(1000))
        statistics = loader.statistics()
        assert statistics.failovers == 1
        assert statistics.sharing == ("ring on GPU-00000000-fake" if frees else "host memfd")
        said = capfd.readouterr().err
        assert ("come from the feed's ring on the host from now on" in said) == (not frees)
        if not frees:
            assert ("no views any more" in said) == views
            assert statistics.handed == "copy on fake:0 from the pinned ring"
            assert "cuda:0 could not be used for 0.5 s: CUDA refused: it is a test" in penstock.feeds()[0].sharing
