"""A store as a collocation leaves it: runs alone, together, under MPS and on one feed; and some that go on."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tests.fakes.nvml.fake_gpus import FakeGpus
from tests.web.seeded import add_points

from penstock.linux.process import stat_of
from penstock.runs.record import GroupPlan, RunPlan, RunRecord
from penstock.runs.store import Store

RATES = ("0.3", "0.1", "0.03", "0.01")
EPOCHS, SAMPLES = 10, 50_000
GIB, GB = 1 << 30, 10**9


class Kind(NamedTuple):
    """How a group fares: of each run's time, what it waits and copies; and what it takes."""

    name: str
    mode: str
    seconds: float
    waiting: float
    copying: float
    cores: float
    sm_active: float
    pss_bytes: float
    package_w: float
    gpu_w: float


KINDS = (
    Kind("own loaders", "alone", 410, 0.37, 0.04, 7.6, 46, 6.1 * GIB, 145, 290),
    Kind("own loaders", "plain", 1180, 0.64, 0.02, 7.9, 58, 6.0 * GIB, 190, 340),
    Kind("own loaders", "mps", 1120, 0.66, 0.02, 7.9, 63, 6.0 * GIB, 190, 350),
    Kind("one feed", "mps", 560, 0.09, 0.03, 5.3, 93, 2.2 * GIB, 120, 560),
)


def series(kind: Kind, index: int, seconds: float, points: int) -> dict[str, list[float]]:
    """Return series of a run up to a moment of it."""
    noise = np.random.default_rng(index + 7 * len(kind.mode))
    at = np.linspace(0, seconds, points)
    epochs = at / kind.seconds * EPOCHS

    def wandering(by: float) -> NDArray[np.float64]:
        """Return what goes up and down within some ten seconds, as readings of a machine do."""
        kernel = np.hanning(15) / np.sqrt(np.sum(np.hanning(15) ** 2))
        return by * (
            np.convolve(noise.standard_normal(points + 14), kernel, "valid") + 0.15 * noise.standard_normal(points)
        )

    def around(middle: float, by: float) -> list[float]:
        return (middle + wandering(by)).clip(0, None).tolist()

    unsteady = np.cumsum(1 + wandering(0.12)) / points * seconds

    floor, speed = 0.9 + 0.25 * index, 0.55 - 0.07 * index
    return {
        "loss": (floor + (6.2 - floor) * np.exp(-speed * epochs) + wandering(0.03)).tolist(),
        "accuracy": (0.76 - 0.06 * index - 0.7 * np.exp(-speed * epochs)).tolist(),
        "feed.wait_s": (unsteady * kind.waiting).clip(0, None).tolist(),
        "feed.copy_s": (at * kind.copying).tolist(),
        "feed.loop_s": (at * 0.96).tolist(),
        "feed.samples": (epochs * SAMPLES).tolist(),
        "feed.epoch_s": around(kind.seconds / EPOCHS, 0.02 * kind.seconds / EPOCHS)[: max(1, int(epochs[-1]))],
        "proc.cpu_s": (unsteady * kind.cores / (1 if kind.mode == "alone" else 4)).tolist(),
        "proc.rss_bytes": around(kind.pss_bytes, 4e7),
        "proc.pss_bytes": around(kind.pss_bytes, 3e7),
        "proc.read_bytes": (at * 9e7).tolist(),
        "host.cpus": [8.0] * points,
        "host.cores": [8.0] * points,
        "host.cpu_s": (at * min(8, kind.cores + 0.1)).tolist(),
        "gpm.0.sm_active_percent": [min(99.0, value) for value in around(kind.sm_active, 2)],
        "gpu.0.utilisation_percent": [min(100.0, value) for value in around(kind.sm_active + 4, 1)],
        "energy.package0_j": (at * kind.package_w).tolist(),
        "energy.gpu0_j": (at * kind.gpu_w).tolist(),
    }


def planned(store: Store, name: str, mode: str) -> list[RunRecord]:
    """Add a group whose runs wait."""
    plan = [
        RunPlan(
            command=("python", "train.py", f"--lr={lr}"),
            name=f"lr={lr}",
            directory="/home/you/imagenet",
            parameters={"lr": lr},
        )
        for lr in RATES
    ]
    return store.add(GroupPlan(name=name, mode=mode, runs=tuple(plan)))


def add(store: Store, kind: Kind, began: float, every_s: int = 1) -> list[RunRecord]:
    """Add a group whose runs have all finished, and were looked at so often."""
    records = planned(store, kind.name, kind.mode)
    for record in records:
        seconds = kind.seconds * (1 + 0.013 * record.index)
        start = began + (record.index * 1.02 * kind.seconds if kind.mode == "alone" else record.index)
        store.began(record.id, keeper=(1, 1), pid=1, time_s=start)
        for name, values in series(kind, record.index, seconds, int(seconds) // every_s).items():
            add_points(store, record.id, name, values, start, seconds)
        store.ended(record.id, "finished", 0, "")
        with store._lock:
            store._connection.execute("UPDATE runs SET ended = ? WHERE id = ?", (start + seconds, record.id))
        store.compact(record.id)
    return records


TRAINER = """
import sys, time, penstock
loader = penstock.attach("imagenet/train", 128, wait_s=100)
print("attached", flush=True)
while True:
    for batch in loader:
        time.sleep(0.08 + 0.02 * float(sys.argv[1]))
"""
FEEDER = """
import numpy as np, penstock
images = {"image": np.zeros((20000, 3, 32, 32), np.uint8), "label": np.zeros(20000, np.int64)}
print("made", flush=True)
penstock.Feeder(penstock.ArraySource(images, batch_size=256), "imagenet/train", window="64MiB").run()
"""


@contextmanager
def going_on(store: Store, gpus: FakeGpus) -> Iterator[list[RunRecord]]:
    """Let four runs on one feed go on, three minutes after they began, on two GPUs."""
    kind = KINDS[-1]
    words = [[FEEDER], *([TRAINER, str(place)] for place in range(len(RATES)))]
    children: list[subprocess.Popen[str]] = []
    try:
        for each in words:
            children.append(subprocess.Popen([sys.executable, "-c", *each], stdout=subprocess.PIPE, text=True))
            assert children[-1].stdout and children[-1].stdout.readline()
        trainers = children[1:]
        records = planned(store, "wider", kind.mode)
        for record, child in zip(records, trainers, strict=True):
            began = time.time() - 180 + record.index
            keeper = (child.pid, int((stat_of(child.pid) or [])[19]))
            store.began(record.id, keeper=keeper, pid=child.pid, time_s=began)
            for name, values in series(kind, record.index, 180, 180).items():
                add_points(store, record.id, name, values, began, 180)
        for place in range(2):
            gpus.add(
                gpm={"2": 93.0 - 2 * place},
                utilisation=98 - place,
                used_bytes=23 * GB,
                power_mw=562_000 - 9000 * place,
                temperature_c=64 + place,
                processes=[[child.pid, 11 * GB] for child in trainers[2 * place :][:2]],
            )
        yield [store.run(record.id) for record in records]
    finally:
        for child in reversed(children):
            child.kill()
            child.communicate()
