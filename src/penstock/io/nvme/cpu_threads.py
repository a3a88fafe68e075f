"""The submitting side on the CPU: ``queues.cuh``, compiled by the host's compiler and run by threads."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import ReaderUnavailable
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
