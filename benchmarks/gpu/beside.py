"""Processes beside the one that measures: the CPU's workers of ``ImageSource``, and a training on the GPU."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from benchmarks.gpu.record import ROOT

ALLOWED = os.sched_getaffinity(0)
PART = 32
_READY_S = 40.0
_CPU_SHARE = 5  # of nice, for workers that leave the GPU's process its core


def cpus(count: int, *, last: bool = False) -> list[int]:
    """Return as many of this machine's processors, by whole cores: both threads of one are neighbours."""

    def core(cpu: int) -> tuple[int, ...]:
        where = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        names = ("physical_package_id", "core_id")
        with suppress(OSError, ValueError):
            return (*(int((where / name).read_text()) for name in names), cpu)
        return (0, cpu, cpu)

    ordered = sorted(ALLOWED, key=core)
    return ordered[-count:] if last else ordered[:count]


def fastest() -> dict[str, str]:
    """Return what makes the CPU's workers decode regions by libjpeg-turbo, where PyPI's turbojpeg is there."""
    spec = importlib.util.find_spec("turbojpeg")
    found = next(Path(spec.origin).parent.glob("turbojpeg.libs/libturbojpeg*"), None) if spec else None
    return {"PENSTOCK_TURBOJPEG": str(found)} if found else {"PENSTOCK_DECODER": "simplejpeg"}


class Claims:
    """Parts that nobody has taken yet, shared by processes; below 0 there is no end of them."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "r+b" if path.exists() else "w+b", buffering=0)  # noqa: SIM115

    def close(self) -> None:
        self._file.close()

    def left(self, parts: int) -> None:
        os.pwrite(self._file.fileno(), struct.pack("q", parts), 0)

    def take(self, most: int) -> int:
        """Take some parts; 0 where none are left."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            (left,) = struct.unpack("q", os.pread(self._file.fileno(), 8, 0))
            if left < 0:
                return most
            self.left(left - (taken := min(most, left)))
            return taken
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


class Other:
    """Another process of this script, on processors of its own, that says how much it has done."""

    def __init__(self, on: list[int], *arguments: str, **environment: str) -> None:
        role, *others = arguments
        command = [sys.executable, "-m", "benchmarks.gpu.beside", role, ",".join(map(str, on)), *others]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, **environment}
        )
        self.said: list[tuple[float, int]] = []
        self.name = ""
        self.began = threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        for line in self._process.stdout or ():
            if line.startswith("done "):
                self.said.append((time.monotonic(), int(line[5:])))
                if len(self.said) > 4:
                    self.began.set()
            else:
                self.name = line.strip()
        self.began.set()

    def ready(self) -> Other:
        """Wait until it is at work."""
        if not self.began.wait(_READY_S) or len(self.said) < 5:
            raise RuntimeError("a process beside did not begin")
        return self

    def rate(self, begin: float, end: float) -> float:
        """Return what it did a second, between the last words before each of these times."""
        count, first, last = 0, begin, begin
        for at, done in list(self.said):
            if at <= begin:
                first = last = at
            elif at <= end:
                count, last = count + done, at
        return count / (last - first) if last > first else 0.0

    def done_since(self, begin: float) -> int:
        return sum(done for at, done in list(self.said) if at > begin)

    def tree(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            process = psutil.Process(self._process.pid)
            return [process, *process.children(recursive=True)]
        return []

    def cpu_s(self) -> float:
        total = 0.0
        for process in self.tree():
            with suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def yield_to_others(self) -> None:
        """Lower its share; between sessions only autogroup's own nice counts, where it is on."""
        for process in self.tree():
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, _CPU_SHARE)
            with suppress(OSError):
                Path(f"/proc/{process.pid}/autogroup").write_text(str(_CPU_SHARE))

    def pause(self, *, on: bool) -> None:
        os.kill(self._process.pid, signal.SIGSTOP if on else signal.SIGCONT)

    def wait(self, most_s: float) -> None:
        self._process.wait(most_s)
        self._listener.join(most_s)

    def __enter__(self) -> Other:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.tree()[::-1]:
            with suppress(psutil.Error):
                process.kill()
        self.wait(_READY_S)
        if self._process.stdout:
            self._process.stdout.close()


def prepare(folder: Path, workers: int, claims: Claims) -> None:
    """Be the CPU's side: prepare parts with the product's workers, and only count them."""
    import penstock
    from penstock.contracts import Cursor

    source = penstock.ImageSource(folder, size=224, batch_size=PART, workers=workers)
    print(source.decoder, flush=True)

    def plans() -> Iterator[Any]:
        while True:
            for plan in source.plans(Cursor(0, 0)):
                if len(plan.ids) == PART:
                    if not claims.take(1):
                        return
                    yield plan

    for block in source.load(plans(), 0):
        print(f"done {block.rows}", flush=True)
    source.close()


def train(device: str) -> None:
    """Be a training that keeps the GPU busy: a ResNet-18 on images that lie there."""
    import torch
    from benchmarks.gpu.device import _training  # the step of the other GPU benchmarks

    if device == "cpu":
        torch.set_num_threads(1)
    batch = 128 if device == "cuda" else 2
    size = 224 if device == "cuda" else 32
    step = _training(device, 64 if device == "cuda" else 8)
    leaves = [
        torch.randint(0, 256, (batch, size, size, 3), dtype=torch.uint8, device=device),
        torch.randint(0, 1000, (batch,), device=device),
    ]
    events: list[Any] = []
    while True:
        step(leaves)
        if device == "cuda":
            events.append(torch.cuda.Event(blocking=True))
            events[-1].record()
            if len(events) > 2:
                events.pop(0).synchronize()
        print(f"done {batch}", flush=True)


def pin(on: Sequence[int]) -> None:
    """Keep this process, all its threads, to these processors."""
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            os.sched_setaffinity(int(thread.name), on)


def main(role: str, on: str, *others: str) -> None:
    """Be a process beside."""
    os.sched_setaffinity(0, [int(cpu) for cpu in on.split(",")])
    if role == "train":
        train(others[0])
    else:
        prepare(Path(others[0]), int(others[1]), Claims(Path(others[2])))


if __name__ == "__main__":
    main(*sys.argv[1:])
