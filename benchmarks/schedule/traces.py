"""Jobs from published traces, and jobs drawn from a published table.

None of them says all that a schedule needs: what is assumed is part of the result, as are jobs left out.
"""

from __future__ import annotations

import ast
import csv
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from penstock.errors import BadSetting
from penstock.schedule.jobs import Job

_MURI_WORKERS = 4
"""Processes that prepare a job's data: Muri's traces say how long they take, not how many they are."""
_DRAWN_S = (600.0, 3600.0)
"""How long a drawn job computes, at the least and at the most."""


class Trace(NamedTuple):
    """Jobs of a trace."""

    jobs: tuple[Job, ...]  # the jobs that can be scheduled
    pairs: Mapping[tuple[str, str], float] = MappingProxyType({})
    """What was measured of two kinds on one GPU; see ``GpuMachine``."""
    left_out: Mapping[str, int] = MappingProxyType({})
    """Why jobs are missing, and how many: "need more than 8 GPUs"."""
    assumed: tuple[str, ...] = ()  # what the trace does not say, a sentence each


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


def read_trace(text: str, *, gpus: int, same_data: float = 1.0, seed: int = 0) -> Trace:
    """Read a trace.

    Args:
        text: "gavel:FILE", "muri:FILE" or "tiresias:FILE" for a published trace; "synergy:24" for 24 jobs
            drawn from Synergy's table; else a JSON file with a list of jobs.
        gpus: GPUs of the machine: jobs that need more are left out.
        same_data: Of drawn jobs, the part that trains on one data set of images.
        seed: Of what is drawn.
    """
    form, _, rest = text.partition(":")
    if form == "synergy" and rest:
        return drawn(_count(rest), same_data, seed)
    readers: dict[str, Callable[[Path], Trace]] = {"gavel": _gavel, "muri": _muri, "tiresias": _tiresias}
    read = readers.get(form) if rest else None
    path = Path(rest if read else text)
    try:
        trace = (read or _jobs)(path)
        if not trace.jobs:
            raise ValueError("there is no job in it")
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, IndexError, SyntaxError, msgspec.MsgspecError) as error:
        kind = f"a trace of {form.capitalize()}'s" if read else "a JSON list of jobs (name, samples, gpu_s, …)"
        raise BadSetting(f"{path} is not {kind}: {error}") from None
    fit = tuple(job for job in trace.jobs if job.gpus <= gpus)
    if not fit:
        raise BadSetting(f"{path} has no job that fits on {gpus} GPUs")
    left_out = dict(trace.left_out)
    if len(fit) < len(trace.jobs):
        left_out[f"need more than {gpus} GPUs"] = len(trace.jobs) - len(fit)
    return trace._replace(jobs=fit, left_out=left_out)


def drawn(number: int, same_data: float, seed: int) -> Trace:
    """Draw jobs of 10 to 60 minutes of Synergy's kinds; those on the one data set are of its image kinds."""
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
    return Trace(tuple(jobs), assumed=("Each job takes 4 GiB of GPU memory, and 60% of the multiprocessors.",))


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise BadSetting(f"synergy:{text}: the number of jobs is from 1 to 10,000")
    return int(text)


def _jobs(path: Path) -> Trace:
    jobs = msgspec.json.decode(path.read_bytes(), type=tuple[Job, ...])
    if len({job.name for job in jobs}) < len(jobs):
        raise ValueError("two jobs have one name")
    for job in jobs:
        costs = job.preparation_s, job.own_s, job.gpu_s, job.start_s, job.feed_start_s, job.memory_bytes
        if min(costs) < 0 or sum(costs[:3]) <= 0 or job.samples <= 0 or job.gpus < 1 or job.priority <= 0:
            raise ValueError(f"job {job.name!r} has no samples, costs nothing, or less than nothing")
        if lost := {*job.after} - {other.name for other in jobs}:
            raise ValueError(f"job {job.name!r} comes after {min(lost)!r}, which is none of them")
    TopologicalSorter({job.name: job.after for job in jobs}).prepare()  # refuses circles
    return Trace(jobs)


def _gavel(path: Path) -> Trace:
    """Gavel's traces (OSDI'20): lines of type, command, …; rates, also of pairs, from the JSON file beside it."""
    rates = msgspec.json.decode((path.parent / "gavel-simulation_throughputs.json").read_bytes())["v100"]
    table = {ast.literal_eval(key): {**each} for key, each in rates.items()}
    jobs, scaled = list[Job](), 0
    for number, fields in enumerate(_lines(path)):
        if len(fields) >= 10:  # type, command, folder, argument, needs data, steps, scale, weight, SLO, arrival
            kind, command, steps, gpus, weight, arrives = (fields[k] for k in (0, 1, 5, 6, 7, 9))
        else:  # type, command, argument, needs data, steps, arrival, scale
            kind, command, steps, arrives, gpus = (fields[k] for k in (0, 1, 4, 5, 6))
            weight = "1"
        alone = table.get((kind, int(gpus)), {}).get("null", 0.0)
        if alone <= 0:
            alone = table[kind, 1]["null"] * int(gpus)
            scaled += 1
        paths, batch = re.findall(r"%s/(\S+)", command), re.search(r"batch size (\d+)", kind)
        rows = int(batch[1]) if batch else 1
        cores = next((cores for name, cores in _CORES_OF.items() if kind.startswith(name)), 1)
        jobs.append(
            Job(
                name=f"{kind} #{number}",
                samples=float(steps) * rows,
                preparation_s=cores * int(gpus) / alone / rows,
                gpu_s=1 / alone / rows,
                gpus=int(gpus),
                data=paths[-1] if paths else "",
                kind=f"{kind} x{gpus}",
                priority=float(weight),
                arrives_s=float(arrives),
            )
        )
    pairs = {
        (f"{kind} x{scale}", f"{other[0]} x{other[1]}"): each[0] / row["null"]
        for (kind, scale), row in table.items()
        for other, each in ((ast.literal_eval(key), each) for key, each in row.items() if key != "null")
        if row["null"] > 0
    }
    return Trace(
        tuple(jobs),
        pairs,
        assumed=(
            "Preparation is Synergy's: 9 cores a GPU for ResNet-18, 4 for ResNet-50, 1 for the others.",
            *([f"{scaled} jobs compute on n GPUs n times as fast as on one."] if scaled else []),
        ),
    )


def _muri(path: Path) -> Trace:
    """Muri's traces (SIGCOMM'22): milliseconds an iteration of preparation, GPU and network."""
    jobs = list[Job]()
    for row in _rows(path):
        rows = int(row["batch_size"])
        prepared, computed, sent = (float(row[f"resource_time_{k}"]) / 1000 / rows for k in range(3))
        images = row["model_name"].startswith(("vgg", "resnet", "shufflenet"))
        jobs.append(
            Job(
                name=f"{row['model_name']} #{row['job_id']}",
                samples=float(row["iterations"]) * rows,
                preparation_s=_MURI_WORKERS * prepared,
                gpu_s=computed + sent,
                gpus=int(row["num_gpu"]),
                data="images" if images else "",
                kind=row["model_name"],
                arrives_s=float(row["submit_time"]) / 1000,
            )
        )
    return Trace(
        tuple(jobs),
        assumed=(
            f"Preparation ran in {_MURI_WORKERS} processes a job.",
            "VGG, ResNet and ShuffleNet train on one data set; the others share nothing.",
        ),
    )


def _tiresias(path: Path) -> Trace:
    """Tiresias' trace (NSDI'19): iterations and how long they take."""
    jobs = [
        Job(
            name=f"{row['model_name']} #{row['job_id']}",
            samples=float(row["iterations"]),
            preparation_s=0.0,
            gpu_s=float(row["duration"]) / float(row["iterations"]),
            gpus=int(row["num_gpu"]),
            kind=row["model_name"],
            arrives_s=float(row["submit_time"]),
        )
        for row in _rows(path)
    ]
    return Trace(
        tuple(jobs), assumed=("Nothing is known of data: preparation costs nothing, and none is shared.",)
    )


def _lines(path: Path) -> Iterator[Sequence[str]]:
    with path.open(newline="") as file:
        yield from csv.reader(file, delimiter="\t")


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)
