"""One row of `penstock bench io`: a mechanism under one setting, what it moved and what that cost."""

from __future__ import annotations

import msgspec


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement of one mechanism under one setting.

    Attributes:
        mech: ``"posix"``, ``"direct"``, ``"uring"``, ``"gds"``, ``"gpu"``, ``"object"``, or another tool's,
            such as ``"fio:io_uring"``.
        bs_bytes: Size of one read.
        qd: Reads under way.
        threads: Threads of the process that waited for the kernel; on the device for ``"gpu"``.
        pattern: ``"random"`` or ``"sequential"``.
        dest: ``"host"``, ``"pinned"``, or a GPU such as ``"cuda:0"``.
        cold: Whether the page cache was empty of the file.
        runtime_s: How long it was measured.
        iops: Reads per second.
        mb_s: Throughput in 10^6 bytes per second.
        p50_us: Median time from submission to completion; None where the tool does not say.
        p99_us: 99th percentile.
        p999_us: 99.9th percentile.
        cpu_us_per_op: CPU time of the process, user and kernel, for each read.
        cpu_s_per_gib: CPU time for each GiB.
        cores_busy: CPU time over elapsed time.
        gpu_threads: Threads of the GPU that began reads; None if it began none.
        sm_share: Part of the GPU's multiprocessors that were busy, 0 to 1, or the most that can have been; the
            note says which. None if not known.
        copy_included: Whether these numbers include a copy to the GPU.
        path_taken: What carried the bytes.
        repeat: Number of the repetition, from 0.
        note: What to know about the row; the error, if there is no measurement.
        machine: CPU, cores, GPUs and kernel, in words.
        date: When it was measured, UTC.
    """

    mech: str
    bs_bytes: int
    qd: int
    threads: int
    pattern: str
    dest: str = "host"
    cold: bool = False
    runtime_s: float = 0.0
    iops: float = 0.0
    mb_s: float = 0.0
    p50_us: float | None = None
    p99_us: float | None = None
    p999_us: float | None = None
    cpu_us_per_op: float = 0.0
    cpu_s_per_gib: float = 0.0
    cores_busy: float = 0.0
    gpu_threads: int | None = None
    sm_share: float | None = None
    copy_included: bool = False
    path_taken: str = ""
    repeat: int = 0
    note: str = ""
    machine: str = ""
    date: str = ""
