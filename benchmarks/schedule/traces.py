"""Jobs from Gavel's published traces, and jobs drawn from Synergy's published table."""

from __future__ import annotations

import ast
import csv
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.schedule.jobs import Job

_DRAWN_S = (600.0, 3600.0)
"""How long a drawn job computes, at the least and at the most."""


class Trace(NamedTuple):
    """Jobs of a trace."""

    jobs: tuple[Job, ...]  # the jobs that can be scheduled
    pairs: Mapping[tuple[str, str], float]  # what was measured of two kinds on one GPU; see ``GpuMachine``
    left_out: int  # jobs that need more GPUs than there are


class _Class(NamedTuple):
    """A kind of training in Synergy's table, on a V100."""

    cores: int  # CPU cores that saturate the GPU
    sample_s: float  # seconds a sample once they do


SYNERGY = {
    "alexnet": _Class(12, 0.6 / 2.94 / 512),
    "resnet18": _Class(9, 0.64 / 2.4 / 512),
    "resnet50": _Class(4, 0.78 / 1.15 / 512),
    "mobilenet": _Class(6, 0.71 / 1.55 / 512),
    "shufflenet": _Class(12, 0.615 / 2.89 / 512),
    "m5": _Class(6, 0.6 / 2.5 / 512),
    "deepspeech": _Class(3, 0.757 / 20),
    "transformer": _Class(1, 0.67 / 128),
    "gnmt": _Class(1, 0.12 / 128),
    "lstm": _Class(1, 0.011 / 20),
    "bert": _Class(1, 0.011 / 20),
    "vae": _Class(1, 0.011 / 20),
}
"""Synergy (OSDI'22): kinds of trainings by how many cores keep a V100 busy."""
_IMAGES = ("alexnet", "resnet18", "resnet50", "mobilenet", "shufflenet", "m5")
_CORES_OF = {"ResNet-18": 9, "ResNet-50": 4}
"""Synergy's cores for the types of Gavel's traces; one for all others."""


def drawn(number: int, same_data: float, seed: int) -> tuple[Job, ...]:
    """Draw jobs of 10 to 60 minutes of Synergy's kinds; those on the one data set are of its image kinds.

    Each takes 4 GiB of GPU memory, and 60% of the multiprocessors.
    """
    chance = random.Random(seed)
    jobs = list[Job]()
    for i in range(number):
        shares = chance.random() < same_data
        kind = chance.choice(_IMAGES if shares else tuple(SYNERGY))
        cores, sample_s = SYNERGY[kind]
        jobs.append(
            Job(
                name=f"{kind}-{i}",
                samples=chance.uniform(*_DRAWN_S) / sample_s,
                preparation_s=cores * sample_s,
                gpu_s=sample_s,
                sm_share=0.6,
                memory_bytes=4 << 30,
                data="images" if shares else "",
                kind=kind,
            )
        )
    return tuple(jobs)


def gavel(path: Path, *, gpus: int) -> Trace:
    """Read a trace of Gavel's (OSDI'20): lines of type, command, …; the rates, also of pairs, lie beside it.

    Not all that a schedule needs is in it. Preparation is Synergy's: 9 cores a GPU for ResNet-18, 4 for ResNet-50,
    1 for the others; without a rate, jobs compute on n GPUs n times as fast as on one.
    """
    rates = msgspec.json.decode((path.parent / "gavel-simulation_throughputs.json").read_bytes())["v100"]
    table = {ast.literal_eval(key): {**each} for key, each in rates.items()}
    jobs = list[Job]()
    for number, fields in enumerate(csv.reader(path.read_text().splitlines(), delimiter="\t")):
        if len(fields) >= 10:  # type, command, folder, argument, needs data, steps, scale, weight, SLO, arrival
            kind, command, steps, scale, weight, arrives = (fields[k] for k in (0, 1, 5, 6, 7, 9))
        else:  # type, command, argument, needs data, steps, arrival, scale
            kind, command, steps, arrives, scale = (fields[k] for k in (0, 1, 4, 5, 6))
            weight = "1"
        alone = table.get((kind, int(scale)), {}).get("null", 0.0)
        if alone <= 0:
            alone = table[kind, 1]["null"] * int(scale)
        paths, batch = re.findall(r"%s/(\S+)", command), re.search(r"batch size (\d+)", kind)
        rows = int(batch[1]) if batch else 1
        cores = next((cores for name, cores in _CORES_OF.items() if kind.startswith(name)), 1)
        jobs.append(
            Job(
                name=f"{kind} #{number}",
                samples=float(steps) * rows,
                preparation_s=cores * int(scale) / alone / rows,
                gpu_s=1 / alone / rows,
                gpus=int(scale),
                data=paths[-1] if paths else "",
                kind=f"{kind} x{scale}",
                priority=float(weight),
                arrives_s=float(arrives),
            )
        )
    pairs = {
        (f"{kind} x{n}", f"{other[0]} x{other[1]}"): each[0] / row["null"]
        for (kind, n), row in table.items()
        for other, each in ((ast.literal_eval(key), each) for key, each in row.items() if key != "null")
        if row["null"] > 0
    }
    fit = tuple(job for job in jobs if job.gpus <= gpus)
    return Trace(fit, pairs, len(jobs) - len(fit))
