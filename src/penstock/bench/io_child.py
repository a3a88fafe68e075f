"""The child process of one case: ``python -m penstock.bench.io_child`` reads a job, and prints a row."""

from __future__ import annotations

import importlib
import mmap
import sys
import time
from collections.abc import Callable
from contextlib import closing

import msgspec
import numpy as np

from penstock.bench.io_plan import IoSettings
from penstock.contracts import Extents, Gpu, Numbers, Reader
from penstock.errors import BadSetting, PenstockError
from penstock.gpus.gpm import Activity, meter_of
from penstock.io.measurements import Measurement
from penstock.io.reader import host_memory
from penstock.linux.process import die_with_parent

_PART = 4
"""The loop waits for a quarter of the reads that no thread works on, then begins as many anew."""
_MOST_BLOCKS = 1 << 22


class CaseJob(msgspec.Struct, frozen=True):
    """A case, and what else its process needs to know."""

    case: Measurement
    settings: IoSettings
    path: str
    nbytes: int | None  # size of the file; None to ask the reader


def places(nbytes: int, bs_bytes: int, pattern: str, seed: int) -> Numbers:
    """Return offsets of blocks in reading order, none twice.

    At most 4 million: a block is read again only after all others.
    """
    blocks = nbytes // bs_bytes
    if blocks == 0:
        raise BadSetting(f"a block of {bs_bytes:,} bytes does not fit into {nbytes:,} bytes")
    if pattern == "sequential":
        return np.arange(min(blocks, _MOST_BLOCKS)) * bs_bytes
    return np.random.default_rng(seed).choice(blocks, min(blocks, _MOST_BLOCKS), replace=False) * bs_bytes


def stride(bs_bytes: int) -> int:
    """Return the room in memory for one block, in whole pages."""
    return -(-bs_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


def measure(
    reader: Reader,
    file: int,
    offsets: Numbers,  # of the blocks, in reading order
    bs_bytes: int,
    *,
    threads: int,  # threads of the reader that must always find reads waiting; 0 if it has none
    once: bool,  # whether each block is read only once; else they are read over and over
    runtime_s: float,
    warm_up_s: float,
) -> tuple[int, float, float]:
    """Keep as many reads under way as the reader takes; warm up, then count until all is read or time is up.

    Return the number of reads, the seconds, and the CPU time of this process, user and kernel, in all threads.
    """
    depth = reader.depth
    batch = max(1, (depth - threads) // _PART)
    files, nbytes, targets = np.full(depth, file), np.full(depth, bs_bytes), np.arange(depth) * stride(bs_bytes)
    idle, under_way, at, period = np.arange(depth), 0, 0, len(offsets)
    if not once:  # so that reads that begin together are one slice
        offsets = np.resize(offsets, period + depth)
    ops = 0
    began_s = cpu_s = 0.0  # until counting begins
    now_s = time.perf_counter()
    warm_s = now_s + warm_up_s
    while True:
        if at >= period and not once:
            at -= period
        next_offsets = offsets[at : at + len(idle)]
        if count := len(next_offsets):
            slots = idle[:count]
            extents = Extents(slots, files[:count], next_offsets, nbytes[:count], targets[slots])
            taken = reader.submit(extents)  # fewer, if what it reads through is full
            idle, at, under_way = idle[taken:], at + taken, under_way + taken
        if not began_s and now_s >= warm_s:
            ops, cpu_s, began_s = 0, time.process_time(), time.perf_counter()
        if not under_way or (began_s and now_s - began_s >= runtime_s):
            break
        done = reader.completed(min(batch, under_way))
        if done.failures:
            raise next(iter(done.failures.values()))
        idle = np.concatenate([idle, done.tags])
        under_way -= len(done.tags)
        ops += len(done.tags)
        now_s = time.perf_counter()
    return ops, now_s - began_s, time.process_time() - cpu_s


def run(job: CaseJob) -> Measurement:
    """Measure one case."""
    case, settings = job.case, job.settings
    gpu = _gpu(case.dest)
    with closing(_reader(job, gpu)) as reader:
        opened = reader.open(job.path)
        nbytes = opened.nbytes if job.nbytes is None else job.nbytes
        offsets = places(nbytes, case.bs_bytes, case.pattern, seed=case.repeat)
        once = case.cold and case.mech == "posix"  # blocks read through the page cache are warm the second time
        meter = meter_of(gpu.name) if gpu and case.mech == "gpu" else None
        if meter:
            meter.begin()
        ops, elapsed_s, cpu_s = measure(
            reader,
            opened.file,
            offsets,
            case.bs_bytes,
            threads=0 if case.mech == "uring" else case.threads,
            once=once,
            runtime_s=settings.runtime_s,
            warm_up_s=0.0 if once else settings.warm_up_s,
        )
        seen = Activity()
        notes = [case.note] if case.note else []
        if meter:
            meter.end()
            seen = meter.activity
            notes += [f"SMs: not known ({seen.note})"] * (seen.sm_active is None)
        if once and elapsed_s < settings.runtime_s:
            notes.append(f"ended after {elapsed_s:.2f} s: every block was read once")
        row = case.measured(ops, elapsed_s, cpu_s)
        more = {"sm_share": seen.sm_active, "path_taken": reader.path_taken, "note": "; ".join(notes)}
        return msgspec.structs.replace(row, **more)


def _gpu(dest: str) -> Gpu | None:
    if dest == "host":
        return None
    from penstock.memory.cuda import CudaGpu

    return CudaGpu("cuda" if dest == "pinned" else dest)


def _reader(job: CaseJob, gpu: Gpu | None) -> Reader:
    module, _, name = job.settings.readers.partition(":")
    open_reader: Callable[..., Reader] = getattr(importlib.import_module(module), name)
    case = job.case
    nbytes = case.qd * stride(case.bs_bytes)
    memory = host_memory(nbytes)
    memory[:] = 0  # so that no page is allocated while it is timed
    to = memory if gpu is None or case.dest == "pinned" else gpu.empty(nbytes)
    return open_reader(case.mech, to, depth=case.qd, threads=case.threads, gpu=gpu, staging_bytes=nbytes)


def main() -> None:
    """Run the child process."""
    die_with_parent(None)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=CaseJob)
    try:
        row = run(job)
    except PenstockError as error:
        row = msgspec.structs.replace(job.case, note=str(error))
    sys.stdout.buffer.write(msgspec.json.encode(row))


if __name__ == "__main__":
    main()
