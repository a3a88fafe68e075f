"""Tries, one by one, what the driver, the GPU and torch do here, apart from Penstock's claims.

python -m benchmarks.gpu.facts FILE
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

_PAGES_BYTES = 1 << 20
_MOVED_BYTES = 200 << 30  # some seconds: GPM of a shorter interval tells less than half
_PIECE_BYTES = 1 << 28
_READ_ONLY = 8  # cudaHostRegisterReadOnly

_IMPORTING = """
import resource, sys, torch
from penstock.memory.cuda import CudaGpu
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
memory = CudaGpu("cuda").open_shared(int(sys.argv[1]), 4096)
print(memory.sum().item(), flush=True)
if sys.argv[2] == "write":
    memory.fill_(1)
    torch.cuda.synchronize()
    print("written")
"""


def attributes() -> dict[str, int]:
    """Return what the driver says it supports."""
    from cuda.bindings import driver

    names = (
        "HOST_REGISTER_SUPPORTED",
        "READ_ONLY_HOST_REGISTER_SUPPORTED",
        "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM",
        "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
        "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES",
        "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
        "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED",
    )
    _begun()
    found: dict[str, int] = {}
    for name in names:
        attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}", None)
        if attribute is not None:
            found[name] = int(driver.cuDeviceGetAttribute(attribute, 0)[1])
    return found


def registering() -> dict[str, str]:
    """Try which mappings of a memfd the runtime registers, with which flags."""
    torch = _begun()
    runtime = torch.cuda.cudart()
    found: dict[str, str] = {}
    for pages, protection in (("read-write", mmap.PROT_READ | mmap.PROT_WRITE), ("read-only", mmap.PROT_READ)):
        for flags in (0, _READ_ONLY):
            address = _mapped(protection)
            status = runtime.cudaHostRegister(address, _PAGES_BYTES, flags)
            found[f"{pages}, flags {flags}"] = str(status)
            if not int(status):
                runtime.cudaHostUnregister(address)
            else:
                _forget_error(torch)
    return found


def protecting() -> dict[str, Any]:
    """Try whether copies see changes in pages that were registered and then made read-only."""
    torch = _begun()
    runtime = torch.cuda.cudart()
    fd = os.memfd_create("facts")
    os.ftruncate(fd, _PAGES_BYTES)
    others = mmap.mmap(fd, _PAGES_BYTES)
    address = _mapped(mmap.PROT_READ | mmap.PROT_WRITE, fd)
    status = runtime.cudaHostRegister(address, _PAGES_BYTES, 0)
    protected = ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(_PAGES_BYTES), mmap.PROT_READ)
    source = torch.from_numpy(np.ctypeslib.as_array((ctypes.c_uint8 * _PAGES_BYTES).from_address(address)))
    seen: list[int] = []
    for value in (3, 4):
        others[:] = bytes([value]) * _PAGES_BYTES
        there = torch.empty(_PAGES_BYTES, dtype=torch.uint8, device="cuda")
        there.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        seen.append(int(there.max()) if int(there.min()) == int(there.max()) else -1)
    pinned = source.is_pinned()
    runtime.cudaHostUnregister(address)
    return {"registered": str(status), "protected": protected, "copied": seen, "torch says pinned": pinned}


def sharing() -> dict[str, Any]:
    """Try whether another process can read a ring, cannot write to it, and torch maps it without a copy."""
    from penstock.memory.cuda import CudaGpu

    torch = _begun()
    memory, fd = CudaGpu("cuda").share(4096)
    memory.fill_(2)
    torch.cuda.synchronize()
    said: dict[str, Any] = {}
    for what in ("read", "write"):
        done = subprocess.run(
            [sys.executable, "-c", _IMPORTING, str(fd), what],
            pass_fds=[fd], capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        said[what] = {"status": done.returncode, "printed": done.stdout.split(), "error": done.stderr[-300:]}
    said["bytes after"] = int(memory.sum())
    said["maps without a copy"] = True  # share() refuses what is copied
    return said


def counting() -> dict[str, Any]:
    """Compare GPM's PCIe figure and the older counter over a copy of known size."""
    from penstock.gpus.gpm import meter_of
    from penstock.gpus.nvml import nvml

    torch = _begun()
    meter, known = meter_of("cuda:0"), nvml()
    device = known.nvmlDeviceGetHandleByIndex(0)
    source = torch.empty(_PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
    to = torch.empty(_PIECE_BYTES, dtype=torch.uint8, device="cuda")

    def field() -> int:
        (told,) = known.nvmlDeviceGetFieldValues(device, [known.NVML_FI_DEV_PCIE_COUNT_RX_BYTES])
        return int(told.value.ullVal) if not told.nvmlReturn else -1

    before = field()
    meter.begin()
    began = time.monotonic()
    for _ in range(_MOVED_BYTES // _PIECE_BYTES):
        to.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    seconds = time.monotonic() - began
    meter.end()
    seen = meter.activity
    return {"moved": _MOVED_BYTES, "seconds": seconds, "gpm": seen.received_bytes, "field 198": field() - before,
            "sm_active": seen.sm_active, "note": seen.note}  # fmt: skip


FACTS: dict[str, Callable[[], Any]] = {
    "attributes": attributes,
    "registering": registering,
    "protecting": protecting,
    "sharing": sharing,
    "counting": counting,
}


def told(path: Path, facts: dict[str, Callable[[], Any]] = FACTS) -> None:
    """Write each fact as it is found; one that fails is replaced by its error."""
    found: dict[str, Any] = {}
    for name, fact in facts.items():
        try:
            found[name] = fact()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
        print(name, found[name], flush=True)
        path.write_text(json.dumps(found, indent=1) + "\n")


def _begun() -> Any:
    import torch

    torch.zeros(1, device="cuda")
    return torch


def _mapped(protection: int, fd: int | None = None) -> int:
    """Map new shared memory, which stays mapped; return its address."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    if fd is None:
        fd = os.memfd_create("facts")
        os.ftruncate(fd, _PAGES_BYTES)
    return libc.mmap(None, ctypes.c_size_t(_PAGES_BYTES), protection, mmap.MAP_SHARED, fd, ctypes.c_long(0))


def _forget_error(torch: Any) -> None:
    """Clear a refusal, which the runtime would report again at the next launch."""
    with suppress(RuntimeError):
        torch.ones(1, device="cuda")


if __name__ == "__main__":
    told(Path(sys.argv[1]))
