"""The child process of one case: ``python -m penstock.bench.io.child`` reads a job, and prints a row."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import closing

import msgspec

from penstock.bench.io.loop import ReadLoop, measure, places, stride
from penstock.bench.io.plan import ONE_THREAD, Case, IoSettings
from penstock.contracts import Gpu, Reader
from penstock.errors import PenstockError, ReadFailed
from penstock.gpus.gpm import Activity, meter_of
from penstock.io.advice.measurements import Measurement
from penstock.io.nvme.gpu_threads import most_busy_share
from penstock.io.reader import host_memory
from penstock.linux.process import die_with_parent


class CaseJob(msgspec.Struct, frozen=True):
    """A case, and what else its process needs to know."""

    case: Case
    settings: IoSettings
    path: str
    nbytes: int | None  # size of the file; None to ask the reader
    cold: bool
    seed: int


def run(job: CaseJob) -> Measurement:
    """Measure one case."""
    case, settings = job.case, job.settings
    gpu = _gpu(case)
    with closing(_reader(job, gpu)) as reader:
        opened = reader.open(job.path)
        nbytes = opened.nbytes if job.nbytes is None else job.nbytes
        offsets = places(nbytes, case.bs_bytes, case.pattern, job.seed)
        # Blocks read through the page cache are warm the second time.
        once = job.cold and case.mech == "posix"
        threads = 0 if case.mech in ONE_THREAD else case.threads
        loop = ReadLoop(reader, opened.file, offsets, case.bs_bytes, threads=threads, once=once)
        meters = [meter_of(gpu.name)] if gpu and case.mech == "gpu" else []
        warm_up_s = 0.0 if once else settings.warm_up_s
        figures = measure(loop, case.qd, runtime_s=settings.runtime_s, warm_up_s=warm_up_s, watches=meters)
        if figures.ops == 0:
            raise ReadFailed(
                f"all {len(offsets):,} blocks were read before anything was counted; a larger file, "
                "or smaller blocks, would do",
                job.path,
            )
        notes = [f"ended after {figures.elapsed_s:.2f} s: every block was read once"] * figures.exhausted
        sm_share = None
        if gpu and meters:
            sm_share, note = _busy_share(meters[0].activity, gpu.name, case.threads)
            notes.append(note)
        p50_us, p99_us, p999_us = figures.latencies.percentiles_us(0.5, 0.99, 0.999)
        return case.measured(
            figures.ops,
            figures.elapsed_s,
            figures.cpu_s,
            cold=job.cold,
            p50_us=p50_us,
            p99_us=p99_us,
            p999_us=p999_us,
            gpu_threads=case.threads if meters else None,
            sm_share=sm_share,
            copy_included=case.dest.startswith("cuda") and case.mech != "gds",
            path_taken=reader.path_taken,
            note="; ".join(notes),
        )


def _busy_share(seen: Activity, device: str, threads: int) -> tuple[float, str]:
    """Return the part of a GPU's multiprocessors that its reading threads used, 0 to 1, and the source of that.

    NVML API Reference Guide, "GPM Functions": NVML_GPM_METRIC_SM_UTIL, from Hopper on; else an upper bound.
    """
    if seen.sm_active is not None:
        return seen.sm_active, "SMs: measured by NVML, of all that ran on the GPU"
    most = most_busy_share(threads, int(device.partition(":")[2]))
    return most, f"SMs: estimated, at most this part holds reading threads; NVML has no figure ({seen.note})"


def _gpu(case: Case) -> Gpu | None:
    if case.dest == "host":
        return None
    from penstock.memory.cuda import CudaGpu

    return CudaGpu("cuda" if case.dest == "pinned" else case.dest)


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
        row = job.case.row(cold=job.cold, note=str(error))
    sys.stdout.buffer.write(msgspec.json.encode(row))


if __name__ == "__main__":
    main()
