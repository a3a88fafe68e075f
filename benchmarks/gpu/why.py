"""Where a trainer's CPU time goes: ``python -m benchmarks.gpu.why OUT DEVICE SECONDS SIZE...``.

This process is the trainer. Beside each feed stands what no feed can undercut: copies on the device, as fast
as they come, and paced at the feed's own rate, with one sleep a batch. What is counted is read at batches only.
"""

from __future__ import annotations

import json
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu.device import forget_memory, memory_bytes
from benchmarks.measure.pool import MeasuredProcess, ProcessPool
from benchmarks.share.feeding import Feeding
from benchmarks.share.trainer import open_source
from benchmarks.share.trainers import start_feeder
from benchmarks.share.workload import synthetic

from penstock.feed.settings import bytes_from
from penstock.linux.process import cpu_s, with_descendants

RINGS = ("host ring", "GPU ring")
_WINDOW = "256MiB"
_REPEATS = 2
_WARM_UP, _WARM_UP_S = 50, 3.0
_WAITS = 500
_KERNEL_CYCLES = 500_000  # about 0.3 ms
_SENDS = """
import socket, sys, time
to = socket.socket(fileno=int(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    time.sleep(0.0005)
    to.send(b"x")
"""


class Usage:
    """What this process has used since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._whole, self._own = (resource.getrusage(who) for who in _WHO)
        self._threads = _threads()

    def per(self, batches: int) -> dict[str, Any]:
        """Return it for each batch: CPU µs and switches of the process and of this thread, µs by thread."""
        seconds = time.monotonic() - self._began
        now = [resource.getrusage(who) for who in _WHO]
        after = _threads() - self._threads
        told: dict[str, Any] = {"batches": batches, "batches_per_s": batches / seconds}
        for name, one, before in zip(("process", "thread"), now, (self._whole, self._own), strict=True):
            told[name] = {
                "user_us": 1e6 * (one.ru_utime - before.ru_utime) / batches,
                "system_us": 1e6 * (one.ru_stime - before.ru_stime) / batches,
                "slept": (one.ru_nvcsw - before.ru_nvcsw) / batches,
                "preempted": (one.ru_nivcsw - before.ru_nivcsw) / batches,
            }
        return told | {"us_by_thread": {name: ns / 1e3 / batches for name, ns in after.items()}}


_WHO = (resource.RUSAGE_SELF, resource.RUSAGE_THREAD)


def _threads() -> Counter[str]:
    """Return the CPU time of this process's threads in ns, by name; those of one name are added up."""
    found: Counter[str] = Counter()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found[(task / "comm").read_text().strip()] += int((task / "schedstat").read_text().split()[0])
    return found


def taken(order: dict[str, Any], seconds: float, warm_up: int, per_s: float = 0.0) -> dict[str, Any]:
    """Take batches for some seconds, from a batch to a batch; ``per_s`` paces them with one sleep each."""
    source = open_source(order)
    batches = iter(_paced(source.batches, per_s) if per_s else source.batches)
    warm = time.monotonic() + _WARM_UP_S
    for _ in range(warm_up):
        next(batches)
        if time.monotonic() > warm:
            break
    usage, count = Usage(), 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        next(batches)
        count += 1
    told = usage.per(count)
    source.close()
    return told | {"device_bytes": memory_bytes(order["device"])}


def _paced(batches: Iterable[Any], per_s: float) -> Iterator[Any]:
    due = time.monotonic()
    for batch in batches:
        due = max(due + 1 / per_s, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        yield batch


def event_wait() -> dict[str, Any]:
    """Return what a wait for a blocking event costs that a short kernel lets pass."""
    event = torch.cuda.Event(blocking=True)
    usage = Usage()
    for _ in range(_WAITS):
        torch.cuda._sleep(_KERNEL_CYCLES)  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
        event.record()
        event.synchronize()
    return usage.per(_WAITS)


def socket_wake() -> dict[str, Any]:
    """Return what it costs to be woken by another process's byte."""
    here, there = socket.socketpair()
    with here, there:
        command = [sys.executable, "-c", _SENDS, str(there.fileno()), str(_WAITS)]
        with subprocess.Popen(command, pass_fds=[there.fileno()]):
            here.recv(1)
            usage = Usage()
            for _ in range(_WAITS - 1):
                here.recv(1)
            return usage.per(_WAITS - 1)


def main(out: Path, device: str, seconds: float, sizes: list[str]) -> None:
    torch.set_num_threads(1)
    told: dict[str, Any] = {"seconds": seconds, "window": _WINDOW, "cases": []}

    def keep(name: str, call: Callable[[], Any]) -> Any:
        try:
            told[name] = call()
        except Exception as error:  # what one finds impossible the others may not
            told[name] = {"failed": f"{type(error).__name__}: {error}"}
        out.write_text(json.dumps(told, indent=1) + "\n")
        return told[name]

    with tempfile.TemporaryDirectory() as folder, ProcessPool(Path(folder)) as pool:

        def start(which: tuple[str, str]) -> MeasuredProcess:
            ring, size = which
            memory = device if ring == "GPU ring" else "host"
            return start_feeder(pool, Feeding(f"why-{ring}-{size}", _WINDOW, synthetic(size, 1), memory=memory))

        which = [(ring, size) for size in sizes for ring in RINGS]
        with ThreadPoolExecutor(len(which)) as threads:
            feeders = dict(zip(which, threads.map(start, which), strict=True))
        for repeat in range(_REPEATS):
            for size in sizes:
                measure(size, repeat, device, seconds, feeders, keep, told["cases"])
        keep("event wait", event_wait)
        keep("socket wake", socket_wake)
        keep("beyond the paced control", lambda: beyond(told["cases"]))


def measure(
    size: str,
    repeat: int,
    device: str,
    seconds: float,
    feeders: dict[tuple[str, str], MeasuredProcess],
    keep: Callable[[str, Callable[[], Any]], Any],
    cases: list[dict[str, Any]],
) -> None:
    """Measure a size's cases once: each ring, then the controls at each ring's rate and at their own."""
    nbytes = bytes_from(size)
    copies = {"kind": "device copies"}

    def case(arm: str, what: dict[str, Any], warm_up: int, per_s: float, pids: list[int]) -> float:
        forget_memory(device)
        order = {"device": device, "work": "read", "width": 0, "nbytes": nbytes, "borrow": False, **what}
        fed_s, began = cpu_s(with_descendants(pids)), time.monotonic()
        told = taken(order, seconds, warm_up, per_s)
        told["feeder_cores"] = (cpu_s(with_descendants(pids)) - fed_s) / (time.monotonic() - began)
        cases.append({"size": size, "arm": arm, "repeat": repeat, **told})
        return told["batches_per_s"]

    def kept(arm: str, what: dict[str, Any], warm_up: int, per_s: float = 0.0, pids: Sequence[int] = ()) -> Any:
        return keep(f"{arm}, {size}", partial(case, arm, what, warm_up, per_s, list(pids)))

    ready = bytes_from(_WINDOW) // nbytes
    for ring in RINGS:
        feed = {"kind": "feed", "feed": f"why-{ring}-{size}"}
        per_s = kept(ring, feed, _WARM_UP + ready, pids=[feeders[ring, size].pid])
        if isinstance(per_s, float):
            kept(f"paced as the {ring}", copies, _WARM_UP, per_s)
    kept("device copies", copies, _WARM_UP)


def beyond(cases: list[dict[str, Any]]) -> dict[str, float]:
    """Return the CPU µs a batch of each ring beyond the control at its rate: medians over the repeats."""
    us = {(c["size"], c["arm"], c["repeat"]): c["process"]["user_us"] + c["process"]["system_us"] for c in cases}
    found: dict[str, list[float]] = {}
    for (size, arm, repeat), mine in us.items():
        control = us.get((size, f"paced as the {arm}", repeat))
        if control is not None:
            found.setdefault(f"{arm}, {size}", []).append(mine - control)
    return {name: statistics.median(values) for name, values in found.items()}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4:])
