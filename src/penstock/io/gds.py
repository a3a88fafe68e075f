"""GPUDirect Storage: reads into a GPU's memory through NVIDIA's cuFile.

Library and errors: NVIDIA, "cuFile API Reference Guide".

Without a driver cuFile was seen to spin for ever, and with statistics to crash, at exit or when they are read.
So a child process tries it first, ``python -m penstock.io.gds [FILE GPU]``, and only that one turns statistics on.
It prints cuFile's version, or how it reads the file into the GPU's memory.
"""

# cuda-bindings and torch have few types.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from penstock.contracts import DeviceBytes, Opened
from penstock.errors import ReaderUnavailable
from penstock.io.files import file_system, open_file
from penstock.io.queue import BlockingQueue
from penstock.linux.process import in_words

PEER_TO_PEER = "peer to peer"
"""Says in ``path_taken`` that bytes go from the disk into the GPU's memory, not through the host's."""
PROBE_S = 20.0
_PROBE = (sys.executable, "-P", "-m", "penstock.io.gds")
_ways: dict[tuple[int, int], str] = {}
"""How cuFile reads files, by file system (its device number) and GPU."""


@cache
def version() -> str:
    """Return the version of cuFile."""
    if not Path("/proc/driver/nvidia/version").exists():
        raise _unavailable("no NVIDIA driver is loaded")
    return probe()


def probe(command: Sequence[str] = _PROBE, limit_s: float = PROBE_S) -> str:
    """Run ``gds_probe`` and return what it prints; a child process, as cuFile was seen to hang and to crash.

    The child is killed after ``limit_s``. It prints an answer, or on its last line why there is none.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise _unavailable(
            f"cuFile did not open within {limit_s:g} s, as where no NVIDIA driver answers"
        ) from None
    except OSError as error:
        raise _unavailable(f"it cannot be tried: {error}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() if done.returncode > 0 else []
        raise _unavailable(lines[-1] if lines else f"cuFile {in_words(done.returncode)} where it was tried")
    return done.stdout.strip()


def _unavailable(why: str) -> ReaderUnavailable:
    remedy = "read with mech='direct'"
    if "No module named" in why or "cannot import name" in why:
        remedy = f'pip install "penstock[gpu]" (cuda-bindings 13 or newer), or {remedy}'
    elif "libcufile" in why:
        remedy = f"install NVIDIA's libcufile, which is part of the CUDA toolkit, or {remedy}"
    return ReaderUnavailable(f"gds: {why}", remedy)


@cache
def _opened() -> tuple[Any, str]:
    """Open cuFile for the rest of the process; return it and its version."""
    found = version()
    from cuda.bindings import cufile

    try:
        cufile.driver_open()
    except Exception as error:
        raise _unavailable(f"it opens in a child process, but not in this one: {error}") from None
    return cufile, found


class GdsQueue(BlockingQueue):
    """Reads by ``cuFileRead`` in threads."""

    def __init__(self, depth: int, threads: int, memory: DeviceBytes) -> None:
        self._cufile, self._version = _opened()
        super().__init__("gds", depth, threads)
        self._memory = memory  # memory on the GPU, registered with cuFile if it allows that
        self._base = int(memory.data_ptr())
        self._files: dict[int, int] = {}
        self._ways: dict[str, None] = {}  # of the files that are open, in order
        self._refusal = ""
        try:
            self._cufile.buf_register(self._base, memory.nbytes, 0)
        except Exception as error:
            self._refusal = str(error)

    @property
    def path_taken(self) -> str:
        memory = f"memory not registered ({self._refusal})" if self._refusal else "registered memory"
        ways = ", ".join(self._ways) or "nothing opened yet"
        return f"{self._version}, {ways}, {memory}, {self._limit} threads"

    def open(self, path: str) -> Opened:
        fd, nbytes = open_file(path, direct=True)
        try:
            handle = registered(self._cufile, fd)
        except Exception as error:
            os.close(fd)
            raise ReaderUnavailable(
                f"gds: cuFile refuses {path}, on {file_system(path)}: {error}",
                "have it see the disks' udev data, which a container lacks unless /run/udev is mounted there "
                "(CUFILE_LOGFILE_PATH names a log with the reason), or read it with mech='direct'",
            ) from None
        self._files[fd] = handle
        if nbytes:
            self._ways[self._way(path)] = None
        return Opened(fd, nbytes)

    def read(self, file: int, offset: int, nbytes: int, address: int) -> int:
        import torch

        torch.cuda.set_device(self._memory.device)  # of this thread
        try:
            came = self._cufile.read(self._files[file], self._base, nbytes, offset, address - self._base)
        except ValueError as error:  # the bindings mistake the system's error number for one of cuFile's
            found = re.match(r"\d+", str(error))
            number = int(found[0]) if found else errno.EIO
            raise OSError(number, os.strerror(number)) from None
        except Exception as error:
            raise OSError(errno.EIO, str(error)) from None
        if came < 0:
            raise OSError(errno.EIO, f"cuFile error {-came}")
        return came

    def release(self) -> None:
        for fd, handle in self._files.items():
            self._cufile.handle_deregister(handle)
            os.close(fd)
        if not self._refusal:
            self._cufile.buf_deregister(self._base)

    def _way(self, path: str) -> str:
        """Return how cuFile reads this file system; a child finds out, as cuFile's statistics can crash it."""
        gpu = int(self._memory.device.index)
        where = os.stat(path).st_dev, gpu
        if where not in _ways:
            try:
                _ways[where] = probe((*_PROBE, path, str(gpu)))
            except ReaderUnavailable as error:
                _ways[where] = f"way unknown ({error})"
        return _ways[where]


_NBYTES = 4096


def main() -> None:
    """Run the child process."""
    try:
        from cuda.bindings import cufile

        if len(sys.argv) == 1:
            cufile.driver_open()
            print(version_of(cufile))
        else:
            print(_way(cufile, sys.argv[1], int(sys.argv[2])))
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {str(error).splitlines()[0]}")


def version_of(cufile: Any) -> str:
    number = cufile.get_version()
    return f"cuFile {number // 1000}.{number % 1000 // 10}"


def registered(cufile: Any, fd: int) -> int:
    """Register an open file with cuFile; return its handle."""
    described = cufile.Descr()
    described.type = cufile.FileHandleType.OPAQUE_FD
    described.handle.fd = fd
    described.fs_ops = 0  # the pointer to a user's own file system, which some versions leave uninitialised
    return cufile.handle_register(described.ptr)


def way(cufile: Any, handle: int, address: int) -> str:
    """Read from a file once; return how, by cuFile's own counters."""
    cufile.stats_start()  # before which there are no counters
    before = _counted(cufile)
    cufile.read(handle, address, _NBYTES, 0, 0)
    more = {name: count - before[name] for name, count in _counted(cufile).items()}
    cufile.stats_stop()  # after which there are no counters
    return next((name for name, count in more.items() if count), "way unknown (cuFile counted nothing)")


def _way(cufile: Any, path: str, gpu: int) -> str:
    address = _gpu_memory(gpu)
    cufile.set_stats_level(3)  # of each GPU; before the driver opens
    cufile.driver_open()
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    return way(cufile, registered(cufile, fd), address)


def _gpu_memory(gpu: int) -> int:
    from cuda.bindings import driver

    def checked(result: tuple[Any, ...]) -> Any:
        if int(result[0]):
            raise RuntimeError(result[0].name)
        return result[-1]

    checked(driver.cuInit(0))
    checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(checked(driver.cuDeviceGet(gpu))))))
    return int(checked(driver.cuMemAlloc(_NBYTES)))


def _counted(cufile: Any) -> dict[str, int]:
    level = cufile.StatsLevel3()
    cufile.get_stats_l3(level.ptr)
    stats = level.per_gpu_stats
    each = np.ravel(stats) if isinstance(stats, np.ndarray) else stats  # cuda-bindings 13.0 has a table of one row
    used = [each[i] for i in range(int(level.num_gpus))]
    return {
        f"{PEER_TO_PEER} (P2PDMA)": sum(int(gpu.n_p2p_reads) for gpu in used),
        f"{PEER_TO_PEER} (nvidia-fs)": sum(int(gpu.n_nvfs_reads) for gpu in used),
        "compatibility mode, through host memory": sum(int(gpu.n_posix_reads) for gpu in used),
    }


if __name__ == "__main__":
    main()
