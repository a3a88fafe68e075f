"""Copies between memories: ``python -m benchmarks.gpu.copies OUT DEVICE``.

Into the feeder's ring with several threads; and to the GPU from pages of each kind, by one and the same call.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.memory.copying import Copier
from penstock.memory.gpu_ring import ring_in

NBYTES, DISTINCT = 10_000_000, 4
_SPAN_BYTES, _RING_BYTES = 64 << 20, 256 << 20
_REPEATS = 3
_HUGE_PAGES = Path("/proc/sys/vm/nr_hugepages")
_SHMEM = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


def into_ring(memory: str, threads: int, for_s: float) -> list[float]:
    """Write blocks as a feeder does into a ring of its own, by as many threads; return GB/s."""
    ring, _ = ring_in(memory, _RING_BYTES)
    ring.twin._copier = Copier(threads)
    with closing(ring):
        blocks = [np.full(NBYTES, i + 1, np.uint8) for i in range(DISTINCT)]
        places = range(0, _RING_BYTES - NBYTES, NBYTES)
        for at in places:  # maps its pages
            ring.write(at, blocks[0])
        rates: list[float] = []
        for _ in range(_REPEATS):
            count, began = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - began) < for_s:
                ring.write(places[count % len(places)], blocks[count % DISTINCT])
                ring.flush()
                count += 1
            rates.append(count * NBYTES / elapsed / 1e9)
        return rates


@contextmanager
def setting(path: Path, value: str) -> Iterator[None]:
    """Change a setting of the kernel for a while."""
    text = path.read_text()
    chosen = re.search(r"\[(\w+)\]", text)
    path.write_text(value)
    try:
        yield
    finally:
        path.write_text(chosen[1] if chosen else text)


def _shared(flags: int, nbytes: int = _SPAN_BYTES) -> mmap.mmap:
    fd = os.memfd_create("copies", flags)
    os.ftruncate(fd, nbytes)
    mapped = mmap.mmap(fd, nbytes)
    os.close(fd)
    return mapped


def small(_: ExitStack) -> mmap.mmap:
    return _shared(0)


def hugetlb(stack: ExitStack) -> mmap.mmap:
    stack.enter_context(setting(_HUGE_PAGES, str(int(_HUGE_PAGES.read_text()) + (_SPAN_BYTES >> 21) + 1)))
    return _shared(os.MFD_HUGETLB)


def madvised(stack: ExitStack) -> mmap.mmap:
    stack.enter_context(setting(_SHMEM, "advise"))
    mapped = _shared(0)
    mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


def allocated(_: ExitStack) -> Any:
    return torch.empty(_SPAN_BYTES, dtype=torch.uint8, pin_memory=torch.cuda.is_available())


PAGES: dict[str, Callable[[ExitStack], Any]] = {
    "memfd, small pages": small,
    "memfd, MFD_HUGETLB": hugetlb,
    "memfd, MADV_HUGEPAGE": madvised,
    "cudaHostAlloc": allocated,
}


def pages(kind: str, device: str, for_s: float) -> dict[str, Any]:
    """Copy from pages of a kind to the GPU; return GB/s, and how much of them is huge."""
    with ExitStack() as stack:
        memory = PAGES[kind](stack)
        source = memory if isinstance(memory, torch.Tensor) else torch.frombuffer(memory, dtype=torch.uint8)
        source.fill_(3)
        if device != "cpu" and memory is not source:
            status = torch.cuda.cudart().cudaHostRegister(source.data_ptr(), source.nbytes, 0)
            if int(status):
                return {"failed": f"cudaHostRegister: {status}"}
            stack.callback(lambda: torch.cuda.cudart().cudaHostUnregister(source.data_ptr()))
        targets = [torch.empty(NBYTES, dtype=torch.uint8, device=device) for _ in range(DISTINCT)]

        def copy(i: int) -> None:
            targets[i].copy_(source[i * NBYTES : (i + 1) * NBYTES], non_blocking=True)

        arrived = (lambda: None) if device == "cpu" else torch.cuda.synchronize
        rates = [rate(copy, arrived, for_s) for _ in range(_REPEATS)]
        assert all(int(target.min()) == 3 for target in targets)
        return {"GBps": rates, "huge KiB": _huge(source.data_ptr())}


def rate(copy: Callable[[int], None], arrived: Callable[[], None], for_s: float) -> float:
    """Measure a copy's GB/s, a few copies at a time so that waiting counts little."""
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < for_s:
        for i in range(DISTINCT):
            copy(i)
        arrived()
        count += DISTINCT
    return count * NBYTES / elapsed / 1e9


def _huge(address: int) -> int:
    """Return how much of the mapping at an address is in huge pages, in KiB."""
    found = within = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if span := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            within = int(span[1], 16) <= address < int(span[2], 16)
        elif within and re.match(r"(AnonHugePages|ShmemPmdMapped|Shared_Hugetlb|Private_Hugetlb):", line):
            found += int(line.split()[1])
    return found


def main(out: Path, device: str, for_s: float = 0.5) -> None:
    told: dict[str, Any] = {"shmem_enabled": _SHMEM.read_text().strip() if _SHMEM.exists() else ""}
    steps: dict[str, Callable[[], Any]] = {
        f"memcpy, {n} threads, GBps": (lambda n=n: into_ring("host", n, for_s)) for n in (1, 2, 4, 8)
    }
    if device != "cpu":
        steps |= {
            f"into a GPU's ring, {n} threads, GBps": (lambda n=n: into_ring(device, n, for_s)) for n in (1, 4)
        }
    steps |= {kind: (lambda kind=kind: pages(kind, device, for_s)) for kind in PAGES}
    for name, step in steps.items():
        try:
            told[name] = step()
        except Exception as error:  # what one kind lacks the others may have
            told[name] = {"failed": f"{type(error).__name__}: {error}"}
        out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(float, sys.argv[3:]))
