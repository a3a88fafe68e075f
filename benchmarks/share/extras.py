"""Further measurements: memory, many trainers, the copy into the ring, the import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any, NamedTuple

import msgspec
import psutil
from benchmarks.children import ENVIRONMENT, command
from benchmarks.measure.pool import START_S, ProcessPool
from benchmarks.share.feeding import Feeding
from benchmarks.share.trainers import start_feeder, start_trainers
from benchmarks.share.workload import Workload

from penstock.errors import PenstockError
from penstock.feed.settings import bytes_from
from penstock.linux.process import pss_bytes, with_descendants

CROWD = 64
CROWD_SAMPLES = 16_384
MEMORY_WINDOW = "256MiB"
_HEAVY = ("torch", "mlflow", "starlette", "uvicorn", "cv2", "simplejpeg", "matplotlib")


class MemoryUse(msgspec.Struct, frozen=True):
    """Memory of a feed and its trainers, measured while all of them read."""

    trainers: int
    borrow: bool
    window_bytes: int
    ring_bytes: int  # PSS of the window over all processes
    feeder_bytes: int
    trainer_bytes: tuple[int, ...]  # what each trainer has gained since before it attached, without the window
    batch_bytes: int
    """Size of one batch; with private copies a trainer holds two, the present one and the one before."""

    @property
    def beyond_batches_bytes(self) -> int:
        """What the trainer that needs most has gained, without its batches."""
        return max(self.trainer_bytes) - (0 if self.borrow else 2 * self.batch_bytes)


def memory_use(pool: ProcessPool, workload: Workload, trainers: int, *, borrow: bool, seconds: float) -> MemoryUse:
    """Measure the memory of a new feed with new trainers."""
    feeding = Feeding(f"bench/memory-{trainers}-{borrow}", MEMORY_WINDOW, workload)
    feeder = start_feeder(pool, feeding)
    members = start_trainers(pool, trainers)
    before = [_memory(member.pid).other_bytes for member in members]
    deadline = time.monotonic() + START_S
    for member in members:
        member.send(
            {"do": "take", "kind": "feed", "feed": feeding.feed, "borrow": borrow, "warm_up": 10, "step_s": 0}
        )
    for member in members:
        member.hear_of("ready", deadline)
    time.sleep(seconds)
    used = [_memory(member.pid) for member in members]
    of_feeder = _memory(feeder.pid)
    for member in members:
        member.send({"do": "stop"})
    for member in members:
        member.hear_of("closed", deadline)
    pool.dismiss([*members, feeder])
    return MemoryUse(
        trainers,
        borrow,
        bytes_from(MEMORY_WINDOW),
        of_feeder.ring_bytes + sum(one.ring_bytes for one in used),
        of_feeder.other_bytes,
        tuple(one.other_bytes - was for one, was in zip(used, before, strict=True)),
        workload.block_bytes,
    )


class _Memory(NamedTuple):
    """Memory of a process and its children: feeds' windows, and all else."""

    ring_bytes: int
    other_bytes: int


def _memory(pid: int) -> _Memory:
    pids = with_descendants([pid])
    maps = [each for pid in pids for each in psutil.Process(pid).memory_maps()]
    ring_bytes = sum(each.pss for each in maps if "memfd:penstock-ring" in each.path)
    return _Memory(ring_bytes, sum(map(pss_bytes, pids)) - ring_bytes)


class CrowdResult(msgspec.Struct, frozen=True):
    """The result of many trainers at once, an epoch each."""

    trainers: int
    samples: int
    finished: int  # number of trainers that had their epoch
    lost: int  # samples that did not come, over all trainers
    repeated: int  # samples that came twice, over all trainers
    seconds: float

    @property
    def exact(self) -> bool:
        return self.finished == self.trainers and self.lost == self.repeated == 0


def crowd(pool: ProcessPool, trainers: int, samples: int) -> CrowdResult:
    """Let many trainers, with different batch sizes, read an epoch of one feed."""
    feeding = Feeding("bench/crowd", "64MiB", numbered=samples, numbered_bytes=4096)
    feeder = start_feeder(pool, feeding)
    members = start_trainers(pool, trainers)
    began = time.monotonic()
    for i, member in enumerate(members):
        member.send({"do": "epoch", "feed": feeding.feed, "samples": samples, "batch_size": 16 + i})
    finished = lost = repeated = 0
    for member in members:
        answer = member.hear_of("repeated", began + START_S)
        finished += 1
        lost += answer["lost"]
        repeated += answer["repeated"]
    seconds = time.monotonic() - began
    pool.dismiss([*members, feeder])
    return CrowdResult(trainers, samples, finished, lost, repeated, seconds)


def ring_copy(nbytes: int, repeats: int) -> list[dict[str, Any]]:
    """Compare the copy into the ring with torch's, for each number of threads."""
    answer = _run(command("benchmarks.share.ringcopy", str(nbytes), str(repeats)))
    return answer["ringcopy"]


class ImportResult(msgspec.Struct, frozen=True):
    """``import penstock`` in new interpreters: its times, and the heavy modules that it imports."""

    seconds: tuple[float, ...]
    heavy: tuple[str, ...]


def import_time(times: int = 7) -> ImportResult:
    """Time ``import penstock``."""
    program = (
        "import json, sys, time; began = time.perf_counter(); import penstock; "
        "took = time.perf_counter() - began; "
        "print(json.dumps({'took': took, 'modules': [m for m in sys.modules if '.' not in m]}))"
    )
    answers = [_run([sys.executable, "-P", "-c", program]) for _ in range(times)]
    heavy = sorted({name for answer in answers for name in answer["modules"]} & set(_HEAVY))
    return ImportResult(tuple(answer["took"] for answer in answers), tuple(heavy))


def _run(words: list[str]) -> dict[str, Any]:
    environment = {**os.environ, **ENVIRONMENT}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise PenstockError(f"a measurement failed: {done.stderr.strip()[-1000:]}")
    return json.loads(done.stdout.splitlines()[-1])
