"""On a real GPU: what the fake promises."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from tests.contracts.gpu import DeviceRingContract, GpuContract
from tests.forked import eventually
from tests.scripts import run_python
from torch.utils.data import DataLoader, TensorDataset

import penstock
from penstock.contracts import ByteArray, Gpu, Ring
from penstock.memory.cuda import CudaGpu

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

SAMPLES, ROW_BYTES = 20_003, 4096


def rows(samples: int = SAMPLES) -> penstock.ArraySource:
    ids = np.arange(samples)
    payload = np.repeat((ids % 251).astype(np.uint8)[:, None], ROW_BYTES, 1)
    return penstock.ArraySource({"id": ids, "bytes": payload}, batch_size=256, segments=5)


def ids_of(loader: penstock.Loader) -> list[int]:
    """The samples of an epoch, each with the bytes that it should have; checked where they lie."""
    seen: list[torch.Tensor] = []
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for batch in loader:
        assert batch["bytes"].is_cuda
        wrong += (batch["bytes"] != (batch["id"] % 251).to(torch.uint8)[:, None]).sum()
        seen.append(batch["id"].clone())
    assert int(wrong) == 0
    return torch.cat(seen).tolist()


class TestContractOnAGpu(GpuContract):
    def gpu(self) -> Gpu:
        return CudaGpu("cuda")

    def seen(self, memory: Any) -> ByteArray:
        return memory.cpu().numpy()

    def computed(self, memory: Any) -> None:
        torch.cuda.synchronize()


class TestDeviceRingOnAGpu(DeviceRingContract):
    gpu_code = "from penstock.memory.cuda import CudaGpu", "CudaGpu('cuda')"

    def gpu(self) -> Gpu:
        return CudaGpu("cuda")

    def on_device(self, values: ByteArray) -> Any:
        torch.cuda._sleep(10_000_000)  # what is launched behind it has not run when the copy begins
        return torch.from_numpy(values).to("cuda", non_blocking=True) + 0

    def collect(self, reader: Ring) -> None:
        torch.cuda.synchronize()
        super().collect(reader)

    def seen(self, memory: Any) -> ByteArray:
        return memory.cpu().numpy()


def lent(nbytes: int) -> tuple[CudaGpu, torch.Tensor, list[int]]:
    """A GPU, the last view of a ring full of sevens, and where it says that it has ended."""
    gpu = CudaGpu("cuda")
    memory, fd = CudaGpu("cuda").share(nbytes)
    memory.fill_(7)
    torch.cuda.synchronize()
    ended: list[int] = []
    view = gpu.lend(gpu.open_shared(fd, nbytes), 0, nbytes, lambda: ended.append(1))
    os.close(fd)
    return gpu, view, ended


def test_views_are_read_by_kernels_that_outlive_the_last_of_them() -> None:
    gpu, view, ended = lent(1 << 20)
    int(view.sum())  # loads the kernel, which may take as long as the sleep
    torch.cuda._sleep(1_000_000_000)
    total = view.sum()
    del view
    gpu.collect()
    assert not ended, "the kernel has yet to run"
    assert int(total) == 7 << 20
    eventually(lambda: gpu.collect() and ended)  # at once, but not under compute-sanitizer
    assert ended == [1]


def test_views_that_die_while_a_graph_is_captured_spoil_nothing() -> None:
    gpu, view, ended = lent(4096)
    static = torch.zeros(1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = static + 1
        del view
        gpu.collect()
    graph.replay()
    torch.cuda.synchronize()
    assert (float(result), ended) == (1.0, [])
    gpu.collect_all()
    assert ended == [1]


@pytest.mark.parametrize("memory", ["host", "cuda"])
@pytest.mark.parametrize("batch_size", [None, 100, 1000])
def test_an_epoch_is_every_sample_once(serve: Any, memory: str, batch_size: int | None) -> None:
    serve(rows(), memory=memory, window="64MiB", epochs=2)
    with (
        ThreadPoolExecutor() as threads,
        penstock.attach("feed", batch_size, device="cuda") as one,
        penstock.attach("feed", 333, device="cuda") as other,
    ):
        for seen in threads.map(ids_of, (one, other)):
            assert sorted(seen) == list(range(SAMPLES))
        assert "buffer" not in one.statistics().handed, one.statistics().handed


@pytest.mark.parametrize("own", [False, True], ids=["default stream", "own stream"])
def test_what_a_lagging_stream_has_yet_to_copy_is_not_overwritten(serve: Any, own: bool) -> None:
    serve(rows(), memory="cuda", window="3MiB")
    wrong, seen = torch.zeros((), dtype=torch.int64, device="cuda"), list[torch.Tensor]()
    stream = torch.cuda.Stream() if own else torch.cuda.current_stream()
    torch.cuda.synchronize()
    with penstock.attach("feed", 100, device="cuda") as loader, torch.cuda.stream(stream):
        for batch in loader:
            wrong += (batch["bytes"] != (batch["id"] % 251).to(torch.uint8)[:, None]).sum()
            seen.append(batch["id"])
            torch.cuda._sleep(2_000_000)
        assert loader.statistics().handed == "copy on cuda:0, on the trainer's stream"
        assert (int(wrong), sorted(torch.cat(seen).tolist())) == (0, list(range(SAMPLES)))


@pytest.mark.parametrize("memory", ["host", "cuda"])
def test_chosen_samples_are_gathered_on_the_gpu(serve: Any, memory: str) -> None:
    serve(rows(), memory=memory, window="16MiB")
    chosen = np.random.default_rng(0).permutation(SAMPLES)[: SAMPLES // 3]
    with penstock.attach("feed", 100, device="cuda", select=chosen) as loader:
        assert sorted(ids_of(loader)) == sorted(chosen.tolist())


@pytest.mark.parametrize("memory", ["host", "cuda"])
def test_no_batch_comes_while_a_graph_is_captured(serve: Any, memory: str) -> None:
    serve(rows(), memory=memory, window="16MiB")
    static, graph = torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph()
    with penstock.attach("feed", 100, device="cuda") as loader:
        batches = iter(loader)
        seen = next(batches)["id"].tolist()
        with torch.cuda.graph(graph):
            result = static + 1
            with pytest.raises(penstock.errors.BadSetting, match="captures a graph"):
                next(batches)
        graph.replay()
        assert float(result) == 1.0
        assert sorted(seen + ids_of(batches)) == list(range(SAMPLES))


@pytest.mark.parametrize("memory", ["host", "cuda"])
def test_a_graph_that_another_thread_captures_is_not_broken(serve: Any, memory: str) -> None:
    serve(rows(), memory=memory, window="16MiB")
    began, ends = threading.Event(), threading.Event()

    def capture() -> float:
        static, graph = torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            began.set()
            ends.wait(60)
            result = static + 1
        graph.replay()
        return float(result)

    with penstock.attach("feed", 100, device="cuda") as loader, ThreadPoolExecutor() as threads:
        batches = iter(loader)
        seen = next(batches)["id"].tolist()  # from now on nothing of the trainer's has to be made
        captured = threads.submit(capture)
        assert began.wait(60)
        # To look at one would break the capture by itself, and so may torch's allocator if it needs new memory: it
        # reuses none that another stream has read while a graph is captured.
        kept = [next(batches)["id"] for _ in range(20 if memory == "cuda" else 2)]
        ends.set()
        assert captured.result() == 1.0
        seen += torch.cat(kept).tolist()
        assert sorted(seen + ids_of(batches)) == list(range(SAMPLES))


def test_views_stay_right_while_the_feed_goes_on(serve: Any) -> None:
    serve(rows(), memory="cuda", window="16MiB")
    with penstock.attach("feed", 256, device="cuda", borrow=True) as loader:
        batches = iter(loader)
        kept = next(batches)
        wanted = kept["id"].clone()
        for _ in range(30):
            next(batches)
        assert torch.equal(kept["id"], wanted)
        assert loader.statistics().viewed_bytes > 0


def test_a_loaders_workers_write_where_the_gpu_copies_from(serve: Any) -> None:
    data = TensorDataset(torch.arange(4000), torch.arange(4000).to(torch.uint8)[:, None].repeat(1, 1000))
    serve(DataLoader(data, batch_size=64, shuffle=True, num_workers=2), memory="cuda", window="64MiB")
    with penstock.attach("feed", device="cuda") as loader:
        for _ in range(2):
            seen: list[int] = []
            for ids, payload in loader:
                assert bool((payload == ids.to(torch.uint8)[:, None]).all())
                seen += ids.tolist()
            assert sorted(seen) == list(range(4000))


def test_a_trainer_on_the_host_reads_the_twin_beside_one_on_the_gpu(serve: Any) -> None:
    serve(rows(), memory="cuda", window="64MiB", epochs=1)
    with (
        ThreadPoolExecutor() as threads,
        penstock.attach("feed", 100, device="cuda") as on_gpu,
        penstock.attach("feed", 333) as on_host,
    ):
        there = threads.submit(ids_of, on_gpu)
        here: list[int] = []
        for batch in on_host:
            assert (batch["bytes"] == (batch["id"] % 251).astype(np.uint8)[:, None]).all()
            here += batch["id"].tolist()
        assert sorted(here) == sorted(there.result()) == list(range(SAMPLES))
        assert on_host.statistics().sharing.startswith("host twin of the ring on ")


def test_a_pinned_batch_that_dies_is_kept_until_the_copy_from_it_has_run(serve: Any) -> None:
    rows = torch.arange(40 * (1 << 18)).view(40, -1)
    serve(penstock.ArraySource({"x": rows}, batch_size=4, shuffle=False), window="64MiB")
    with penstock.attach("feed", 2, pin_memory=True) as loader:
        torch.cuda._sleep(200_000_000)
        there: list[torch.Tensor] = []
        for batch in loader:
            assert batch["x"].is_pinned()
            there.append(batch["x"].to("cuda", non_blocking=True))
    assert torch.equal(torch.cat(there).cpu(), rows)


def test_a_feeds_transform_runs_on_the_gpu(serve: Any) -> None:
    def halves(batch: Any) -> Any:
        assert batch["bytes"].is_cuda
        torch.cuda._sleep(1_000_000)  # a result that is copied too early is not yet there
        return {"id": batch["id"], "half": batch["bytes"][:, 0].float() / 2}

    serve(rows(), memory="cuda", transform=halves, window="16MiB")
    for device in ("cuda", None):
        with penstock.attach("feed", 100, device=device) as loader:
            seen: list[int] = []
            for batch in loader:
                assert bool((batch["half"] == (batch["id"] % 251) / 2).all())
                seen += batch["id"].tolist()
            assert sorted(seen) == list(range(SAMPLES))


def test_a_feeder_that_dies_is_replaced() -> None:
    with penstock.share(partial(rows, 20_000), "failover", 100, device="cuda", linger=0.5) as loader:
        seen: list[int] = []
        for i, batch in enumerate(loader):
            seen += batch["id"].tolist()
            if i == 20:
                os.kill(loader.statistics().feeder_pid, signal.SIGKILL)
        assert sorted(seen) == list(range(20_000))


@pytest.mark.parametrize("memory", ["host", "cuda"])
def test_a_trainer_killed_with_copies_under_way_costs_nobody_else(serve: Any, memory: str) -> None:
    serve(rows(), memory=memory, window="16MiB")
    code = "import penstock\nfor _ in penstock.attach('feed', 64, device='cuda'): print(flush=True)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for _ in range(10):
        child.stdout.readline()
    child.kill()
    child.communicate()
    with penstock.attach("feed", device="cuda") as loader:
        assert sorted(ids_of(loader)) == list(range(SAMPLES))


def test_a_window_larger_than_the_gpu_is_an_error_with_both_numbers() -> None:
    nbytes = torch.cuda.get_device_properties(0).total_memory + (1 << 30)
    if nbytes > psutil.virtual_memory().total:
        pytest.skip("the host has less memory than the GPU: its own limit comes first")
    with pytest.raises(penstock.errors.DeviceUnavailable, match=r"refused for [0-9,]{12,} bytes.*bytes are free"):
        penstock.Feeder(rows(), "feed", memory="cuda", window=nbytes)


def test_a_gpu_is_found_by_its_uuid_and_one_that_is_not_there_is_an_error(serve: Any) -> None:
    serve(rows())
    with penstock.attach("feed", device=CudaGpu("cuda:0").uuid) as loader:
        assert next(iter(loader))["id"].is_cuda
    with pytest.raises(penstock.errors.DeviceUnavailable, match="this process sees cuda:0"):
        penstock.attach("feed", device="cuda:99")


def test_the_examples_use_the_gpu() -> None:
    example = Path(__file__).parents[2] / "examples" / "train.py"
    done = run_python(example, "--epochs", "1")
    penstock.stop("digits")  # it would wait half a minute for other trainers
    assert done.returncode == 0, done.stderr
