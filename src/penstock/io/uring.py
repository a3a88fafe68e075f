"""io_uring through the system-call interface: many reads per system call.

Linux, ``Documentation/userspace-api``; man pages ``io_uring(7)``,
``io_uring_setup(2)``, ``io_uring_enter(2)``, ``io_uring_register(2)``. The
queues are arrays in memory that the kernel shares; NumPy fills and empties
them, many entries at a time.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.contracts import ByteArray, Opened
from penstock.errors import ReaderUnavailable
from penstock.io.files import direct_alignment, open_file
from penstock.io.queue import Reads, Results

_SETUP, _ENTER, _REGISTER = 425, 426, 427  # on every architecture
_COOP_TASKRUN = 1 << 8  # do not interrupt this process for what it will collect anyway (Linux 5.19)
_GETEVENTS = 1
_REGISTER_BUFFERS, _REGISTER_FILES, _FILES_UPDATE = 0, 2, 6
_READ_FIXED, _READ = 4, 22
_FIXED_FILE = 1
_FILES = 1024
_BUFFER_BYTES = 1 << 30  # the kernel's limit for one registered buffer
_SQES_OFFSET = 0x10000000

_PARAMS = np.dtype(
    [
        ("sq_entries", "u4"), ("cq_entries", "u4"), ("flags", "u4"), ("rest", "u4", 7),
        ("sq_head", "u4"), ("sq_tail", "u4"), ("sq_mask", "u4"), ("sq_count", "u4"),
        ("sq_flags", "u4"), ("sq_dropped", "u4"), ("sq_array", "u4"), ("sq_rest", "u4", 3),
        ("cq_head", "u4"), ("cq_tail", "u4"), ("cq_mask", "u4"), ("cq_count", "u4"),
        ("cq_overflow", "u4"), ("cqes", "u4"), ("cq_rest", "u4", 4),
    ]
)  # fmt: skip
_SQE = np.dtype(
    [
        ("opcode", "u1"), ("flags", "u1"), ("ioprio", "u2"), ("fd", "i4"), ("off", "u8"), ("addr", "u8"),
        ("len", "u4"), ("rw_flags", "u4"), ("user_data", "u8"), ("buf_index", "u2"), ("rest", "u1", 22),
    ]
)  # fmt: skip
_CQE = np.dtype([("user_data", "u8"), ("res", "i4"), ("flags", "u4")])

_libc = ctypes.CDLL(None, use_errno=True)


class UringQueue:
    """An io_uring whose files and memory are registered with the kernel, once; it reads with O_DIRECT."""

    mech = "uring"

    def __init__(self, depth: int, memory: ByteArray) -> None:
        self.depth = depth  # most reads under way
        self.alignment = 1
        params = np.zeros(1, _PARAMS)
        params["flags"] = _COOP_TASKRUN
        try:
            self._fd = _call(_SETUP, depth, params.ctypes.data)
        except OSError as error:
            raise ReaderUnavailable(f"io_uring: {_why(error)}", "read with mech='direct'") from None
        try:
            self._map(params[0])
        except BaseException:
            os.close(self._fd)
            raise
        self._fds: list[int] = []
        self._start, self._stop = memory.ctypes.data, memory.ctypes.data + memory.nbytes  # where most reads go
        self._files_refusal = self._register(_REGISTER_FILES, np.full(_FILES, -1, np.int32))
        starts = np.arange(0, memory.nbytes, _BUFFER_BYTES)
        pieces = np.stack([self._start + starts, np.minimum(_BUFFER_BYTES, memory.nbytes - starts)], 1)
        self._memory_refusal = self._register(_REGISTER_BUFFERS, pieces.astype(np.uint64))

    def _map(self, made: Any) -> None:
        """Map the queues that the kernel has made."""
        queue_bytes = max(
            int(made["sq_array"]) + 4 * int(made["sq_entries"]),
            int(made["cqes"]) + _CQE.itemsize * int(made["cq_entries"]),
        )
        self._queues = mmap.mmap(self._fd, queue_bytes)
        self._entries = mmap.mmap(self._fd, _SQE.itemsize * int(made["sq_entries"]), offset=_SQES_OFFSET)
        self._sqes = np.frombuffer(self._entries, _SQE)
        self._sq_tail = np.frombuffer(self._queues, np.uint32, 1, int(made["sq_tail"]))
        self._cq_head = np.frombuffer(self._queues, np.uint32, 1, int(made["cq_head"]))
        self._cq_tail = np.frombuffer(self._queues, np.uint32, 1, int(made["cq_tail"]))
        self._cqes = np.frombuffer(self._queues, _CQE, int(made["cq_entries"]), int(made["cqes"]))
        order = np.frombuffer(self._queues, np.uint32, int(made["sq_entries"]), int(made["sq_array"]))
        order[:] = np.arange(len(order))

    @property
    def path_taken(self) -> str:
        memory = f"memory not registered ({self._memory_refusal})" if self._memory_refusal else "registered memory"
        files = f", files not registered ({self._files_refusal})" if self._files_refusal else ""
        return f"io_uring, O_DIRECT, {memory}{files}"

    def open(self, path: str) -> Opened:
        fd, nbytes = open_file(path, direct=True)
        index = len(self._fds)
        self._fds.append(fd)
        self.alignment = max(self.alignment, direct_alignment(fd))
        if self._is_registered(index):
            update = np.zeros(1, np.dtype([("offset", "u4"), ("rest", "u4"), ("fds", "u8")]))
            number = np.array([fd], np.int32)
            update["offset"], update["fds"] = index, number.ctypes.data
            _call(_REGISTER, self._fd, _FILES_UPDATE, update.ctypes.data, 1)
        return Opened(index, nbytes)

    def push(self, reads: Reads) -> None:
        ids, files, offsets, nbytes, addresses = reads
        tail = int(self._sq_tail[0])
        at = (tail + np.arange(len(ids))) & (len(self._sqes) - 1)
        entries = np.zeros(len(ids), _SQE)
        entries["off"], entries["addr"], entries["user_data"] = offsets, addresses, ids
        entries["len"] = np.minimum(nbytes, _BUFFER_BYTES)  # the rest of a larger read is asked for later
        inside = (addresses >= self._start) & (addresses + nbytes <= self._stop)
        first = (addresses - self._start) // _BUFFER_BYTES
        last = (addresses + nbytes - 1 - self._start) // _BUFFER_BYTES
        fixed = inside & (first == last) & (not self._memory_refusal)
        entries["opcode"] = np.where(fixed, _READ_FIXED, _READ)
        entries["buf_index"] = np.where(fixed, first, 0)
        for file in np.unique(files).tolist():
            mine = files == file
            entries["fd"][mine] = file if self._is_registered(file) else self._fds[file]
            entries["flags"][mine] = _FIXED_FILE if self._is_registered(file) else 0
        self._sqes[at] = entries
        self._sq_tail[0] = (tail + len(ids)) & 0xFFFFFFFF
        self._enter(len(ids), 0)

    def pop(self, at_least: int) -> Results:
        ready = -1
        while ready < at_least:
            self._enter(0, at_least)
            ready = (int(self._cq_tail[0]) - int(self._cq_head[0])) & 0xFFFFFFFF
        head = int(self._cq_head[0])
        entries = self._cqes[(head + np.arange(ready)) & (len(self._cqes) - 1)]
        self._cq_head[0] = (head + ready) & 0xFFFFFFFF
        return Results(entries["user_data"].astype(np.int64), entries["res"].astype(np.int64))

    def close(self) -> None:
        # A map has its own descriptor, and a view holds the map.
        del self._sqes, self._sq_tail, self._cq_head, self._cq_tail, self._cqes
        self._queues.close()
        self._entries.close()
        os.close(self._fd)
        for fd in self._fds:
            os.close(fd)

    def _enter(self, to_submit: int, at_least: int) -> None:
        """Enter the kernel, which is also the memory barrier between it and this process."""
        while True:
            try:
                taken = _call(_ENTER, self._fd, to_submit, at_least, _GETEVENTS, 0, 0)
            except InterruptedError:
                continue
            except BlockingIOError:  # the kernel is short of memory for requests: let some finish
                taken = 0
            to_submit -= taken
            if to_submit == 0:
                return

    def _is_registered(self, file: int) -> bool:
        return not self._files_refusal and file < _FILES

    def _register(self, what: int, entries: npt.NDArray[Any]) -> str:
        """Register files or pieces of memory with the kernel; return why it refuses, empty if it does not."""
        try:
            _call(_REGISTER, self._fd, what, entries.ctypes.data, len(entries))
        except OSError as error:
            return _why(error)
        return ""


def _call(number: int, *arguments: int) -> int:
    result = _libc.syscall(ctypes.c_long(number), *(ctypes.c_long(argument) for argument in arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result)


def _why(error: OSError) -> str:
    """Say what a kernel error means here, and what to do."""
    return {
        errno.ENOSYS: "this kernel has none (Linux 5.19 and newer do)",
        errno.EINVAL: "this kernel's is too old (Linux 5.19 and newer will do)",
        errno.EPERM: "it is forbidden here (sysctl kernel.io_uring_disabled, or a container's seccomp profile)",
        errno.ENOMEM: "the limit on locked memory is too low (ulimit -l)",
    }.get(error.errno or 0, error.strerror or str(error))
