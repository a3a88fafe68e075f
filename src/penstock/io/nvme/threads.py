"""The submitting side on a GPU: ``queues.cuh``, compiled by NVRTC, launched for each batch of requests.

An H100 has run it, with the queues served by a CPU (docs/hardware.md). A launch ends when its requests are
done: a kernel that ran for ever would block every synchronisation of the device.
Bytes go from the controller to host memory; only commands, doorbells and
completions cross the bus. A disk's doorbells are its registers, mapped for the
GPU too (CUDA Driver API, cuMemHostRegister, CU_MEMHOSTREGISTER_IOMEMORY).
"""

# cuda-bindings has no annotations.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportMissingTypeStubs=false

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import platform
import shutil
import subprocess
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import ReaderUnavailable
from penstock.gpus.driver import CudaRefused, value_of
from penstock.gpus.driver import compile_for as compiled
from penstock.io.nvme.queue_memory import Array, QueueMemory
from penstock.linux.files import cache_folder, written_whole

HEADER = Path(__file__).with_name("queues.cuh")
_FLAGS = ("-std=c++17", "-O2", "-shared", "-fPIC")


class HostThreads:
    """Threads of the CPU that serve queues in place of a GPU's."""

    def __init__(self, memory: QueueMemory, threads: int) -> None:
        self.label = f"GPU-initiated ({threads} threads on the CPU)"
        self._serve = ctypes.CDLL(str(library())).penstock_serve
        self._serve.argtypes = (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64)
        self._serve.restype = None
        private = np.zeros(memory.private_bytes + 64, np.uint8)
        self._work = memory.work(-(-private.ctypes.data // 64) * 64)
        self._in_use: list[Any] = [memory, private]  # the work holds their addresses
        self._limit = 0
        self._closed = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run, args=(i,), name=f"penstock-gpu-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def expose(self, table: Array) -> int:
        """Make an array that will not change visible to the threads; return its address there."""
        self._in_use.append(table)
        return table.ctypes.data

    def launch(self, limit: int) -> None:
        """Have the threads work until ``limit`` requests are done, counted from the beginning."""
        with self._changed:
            self._limit = limit
            self._changed.notify_all()

    def check(self) -> None:
        """Do nothing: only the process's end ends these threads."""

    def close(self) -> None:
        """End the threads, when nothing is under way any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self, thread: int) -> None:
        served = 0
        while True:
            with self._changed:
                while self._limit == served and not self._closed:
                    self._changed.wait()
                if self._limit == served:
                    return
                served = self._limit
            self._serve(self._work.ctypes.data, thread, served)


def library() -> Path:
    """Return the compiled header; compile it unless this compiler has, for this kind of machine."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), "c++", "g++", "clang++"))), None)
    if compiler is None:
        raise ReaderUnavailable(
            "mech='gpu' with threads on the CPU needs a C++ compiler, and there is none (c++, g++, clang++, or "
            "what CXX names)",
            "install one, or read with mech='uring'",
        )
    key = hashlib.sha256(repr((compiler, _FLAGS, platform.machine())).encode() + HEADER.read_bytes()).hexdigest()
    folder = cache_folder()
    compiled = folder / f"nvme-{key[:16]}.so"
    if not compiled.exists():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with written_whole(compiled) as fresh:  # others may be compiling too
                command = [compiler, *_FLAGS, "-x", "c++", str(HEADER), "-o", str(fresh)]
                subprocess.run(command, capture_output=True, check=True, text=True)
        except subprocess.CalledProcessError as error:
            raise ReaderUnavailable(f"{compiler} cannot compile {HEADER.name}: {error.stderr}") from None
        except OSError as error:
            raise ReaderUnavailable(
                f"{folder} cannot be written ({error.strerror}), and compiled code is kept there",
                "set XDG_CACHE_HOME",
            ) from None
    return compiled


_WARP = 32
_STREAMS = 4  # so that a batch need not wait for the one before


class DeviceThreads:
    """Threads of GPU ``device`` of this process, in whole warps, that serve queues in registered host memory."""

    def __init__(self, memory: QueueMemory, threads: int, device: int) -> None:
        self._driver = driver = _driver()
        gpu = _checked(driver.cuDeviceGet(device))
        major, minor = (
            _checked(driver.cuDeviceGetAttribute(getattr(driver.CUdevice_attribute, _COMPUTE + which), gpu))
            for which in ("MAJOR", "MINOR")
        )
        if major < 7:
            raise ReaderUnavailable(f"cuda:{device} is sm_{major}{minor}; mech='gpu' needs sm_70 or newer")
        cubin = compile_for(f"sm_{major}{minor}")
        self._warps = -(-threads // _WARP)
        self.label = f"GPU-initiated ({self._warps * _WARP} threads on cuda:{device})"
        self._memory = memory
        self._undo = ExitStack()
        self._context = _checked(driver.cuDevicePrimaryCtxRetain(gpu))  # torch uses it too
        self._undo.callback(driver.cuDevicePrimaryCtxRelease, gpu)
        try:
            self._prepare(cubin, device)
        except BaseException:
            self.close()
            raise
        self._next = itertools.cycle(self._streams)

    def _prepare(self, cubin: bytes, device: int) -> None:
        memory, driver = self._memory, self._driver
        module = self._do("cuModuleLoadData", cubin)
        self._undo.callback(self._do, "cuModuleUnload", module)
        self._kernel = self._do("cuModuleGetFunction", module, b"penstock_serve")
        mapped = driver.CU_MEMHOSTREGISTER_DEVICEMAP
        if self._register(memory.memory, mapped) != memory.memory.ctypes.data:
            raise ReaderUnavailable(f"cuda:{device} sees host memory at other addresses than this process")
        registers = None
        if memory.registers is not None:
            registers = self._register(memory.registers, mapped | driver.CU_MEMHOSTREGISTER_IOMEMORY)
        private = self._do("cuMemAlloc", memory.private_bytes)
        self._undo.callback(self._do, "cuMemFree", private)
        self._do("cuMemsetD8", private, 0, memory.private_bytes)
        self._do("cuCtxSynchronize")
        self._work = memory.work(int(private), registers)
        self._tables = self._undo.enter_context(ExitStack())  # given back when no kernel runs any more
        self._streams: list[Any] = []
        for _ in range(_STREAMS):
            stream = self._do("cuStreamCreate", int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
            self._streams.append(stream)
            self._undo.callback(self._do, "cuStreamDestroy", stream)
            self._undo.callback(self._do, "cuStreamSynchronize", stream)

    def _register(self, memory: Array, flags: int) -> int:
        """Map memory, or a disk's registers, for the GPU too; return their address on the GPU."""
        at = memory.ctypes.data
        self._do("cuMemHostRegister", at, memory.nbytes, flags)
        self._undo.callback(self._do, "cuMemHostUnregister", at)
        return int(self._do("cuMemHostGetDevicePointer", at, 0))

    def expose(self, table: Array) -> int:
        """Copy a table into the GPU's memory: over the bus each access would take a microsecond."""
        copy = self._do("cuMemAlloc", table.nbytes)
        self._tables.callback(self._do, "cuMemFree", copy)
        self._do("cuMemcpyHtoD", copy, table.ctypes.data, table.nbytes)
        return int(copy)

    def launch(self, limit: int) -> None:
        bound = np.array([limit], np.uint64)
        parameters = np.array([self._work.ctypes.data, bound.ctypes.data], np.uint64)
        shape = self._warps, 1, 1, _WARP, 1, 1
        self._do("cuLaunchKernel", self._kernel, *shape, 0, next(self._next), parameters.ctypes.data, 0)

    def check(self) -> None:
        """Raise what ended the threads too early, if something did."""
        for stream in self._streams:
            with self._current():
                status, *_ = self._driver.cuStreamQuery(stream)
            if status != self._driver.CUresult.CUDA_ERROR_NOT_READY:
                _checked((status,))

    def close(self) -> None:
        self._undo.close()

    def _do(self, name: str, *arguments: Any) -> Any:
        """Call the driver in this GPU's context."""
        with self._current():
            return _checked(getattr(self._driver, name)(*arguments))

    @contextmanager
    def _current(self) -> Generator[None]:
        _checked(self._driver.cuCtxPushCurrent(self._context))
        try:
            yield
        finally:
            _checked(self._driver.cuCtxPopCurrent())


_COMPUTE = "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_"


def compile_for(architecture: str) -> bytes:
    """Compile the header to machine code of a GPU architecture, such as "sm_90"."""
    try:
        return compiled(HEADER, architecture)
    except (ImportError, RuntimeError, CudaRefused) as error:
        raise ReaderUnavailable(f"mech='gpu' on a GPU needs NVRTC: {error}") from None


def _driver() -> Any:
    try:
        from cuda.bindings import driver

        _checked(driver.cuInit(0))
    except ImportError:
        raise ReaderUnavailable("mech='gpu' on a GPU needs cuda-bindings", 'pip install "penstock[gpu]"') from None
    except RuntimeError as error:
        raise ReaderUnavailable(f"mech='gpu' on a GPU needs a driver: {error}") from None
    return driver


def _checked(result: tuple[Any, ...]) -> Any:
    """Return the value of a call, without its status."""
    try:
        return value_of(result)
    except CudaRefused as error:
        raise ReaderUnavailable(str(error)) from None
