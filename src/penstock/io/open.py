"""Opens readers by the name of their mechanism."""

from __future__ import annotations

from functools import partial
from typing import TypeGuard

import numpy as np

from penstock.basics.sizes import whole_number
from penstock.contracts import ByteArray, DeviceBytes, Gpu, Reader
from penstock.errors import BadSetting
from penstock.io.gds import GdsQueue
from penstock.io.nvme.queue import GpuOfFirstPath
from penstock.io.object import ObjectQueue
from penstock.io.queue import ThreadQueue
from penstock.io.reader import QueueReader
from penstock.io.to_device import DeviceReader, PinnedReader
from penstock.io.uring import UringQueue

MECHANISMS = ("posix", "direct", "uring", "object", "gds", "gpu")
FILE_MECHANISMS = ("posix", "direct", "uring", "gpu")
"""Mechanisms that read files into host memory."""

MAX_DEPTH = 4096
MAX_THREADS = 1024
STAGING_BYTES = 64 << 20


def open_reader(
    mech: str,  # one of ``MECHANISMS``
    memory: ByteArray | DeviceBytes,  # where bytes go while the reader lives: a host array, or a tensor on ``gpu``
    *,
    depth: int = 128,  # extents under way at once, 1 to 4096
    threads: int = 8,  # threads that wait for the kernel, or submit commands, 1 to 1024, if the mechanism has any
    gpu: Gpu | None = None,
    staging_bytes: int = STAGING_BYTES,  # host memory on the way to the device, if the mechanism needs that
) -> Reader:
    """Open a reader into this memory.

    ``gpu`` is that of the memory, or the one with which host memory is registered so that copies from it are
    asynchronous. Under ``"gpu"`` its threads submit; without it, threads of the CPU do.
    """
    if mech not in MECHANISMS:
        raise BadSetting(f"mech={mech!r}: it must be one of {', '.join(MECHANISMS)}")
    depth = whole_number("depth", depth, 1, MAX_DEPTH)
    threads = whole_number("threads", threads, 1, MAX_THREADS)
    staging_bytes = whole_number("staging_bytes", staging_bytes, 1)
    if _on_host(memory) and not (memory.dtype == np.uint8 and memory.ndim == 1 and memory.flags.carray):
        raise BadSetting("memory of the host is one row of bytes that may be written: a flat array of uint8")
    if mech == "gds":
        if _on_host(memory):
            raise BadSetting('mech="gds" reads into a GPU\'s memory, this is the host\'s; read with mech="direct"')
        return QueueReader(GdsQueue(depth, min(threads, depth), memory), memory)
    make = partial(_into_host, mech, depth, threads, gpu)
    if _on_host(memory):
        return make(memory) if gpu is None else PinnedReader(gpu, memory, make)
    if gpu is None:
        raise BadSetting("memory that is not the host's is reached through its GPU: open_reader(..., gpu=...)")
    return DeviceReader(gpu, memory, staging_bytes, make)


def _on_host(memory: ByteArray | DeviceBytes) -> TypeGuard[ByteArray]:
    return isinstance(memory, np.ndarray)


def _into_host(mech: str, depth: int, threads: int, gpu: Gpu | None, memory: ByteArray) -> Reader:
    if mech == "uring":
        return QueueReader(UringQueue(depth, memory), memory)
    if mech == "object":
        return QueueReader(ObjectQueue(depth), memory)
    if mech == "gpu":
        queue = GpuOfFirstPath(depth, threads, gpu, memory)
        return QueueReader(queue, memory, queue.new_buffer)
    return QueueReader(ThreadQueue(depth, min(threads, depth), direct=mech == "direct"), memory)
