"""What joints cost where a cycle is planned, and where batches are handed over."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from itertools import islice
from typing import Any

import numpy as np
import torch
from benchmarks.claim import claim
from torch.utils.data import DataLoader, Dataset

import penstock
from penstock.contracts import Cursor, Joints
from penstock.sources.torch.loader import MapStyleSource

SAMPLES, BATCH_SIZE, JOINTS = 1_300_000, 256, 15


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


def source() -> MapStyleSource:
    return MapStyleSource(DataLoader(Numbers(), BATCH_SIZE, shuffle=True), segments=None, seed=0)


def places(samples: int, batch_size: int) -> tuple[int, ...]:
    """Return where joints are, evenly, at the beginnings of blocks."""
    return tuple(i * (samples // batch_size) // (JOINTS + 1) * batch_size for i in range(1, JOINTS + 1))


def planned_s(of: MapStyleSource, cycle: int, joints: Joints) -> float:
    """Return the time until a cycle's first block comes."""
    since_s = time.perf_counter()
    with closing(of.open(Cursor(cycle, 0), None, joints)) as blocks:
        next(blocks)
    return time.perf_counter() - since_s


def claims_of_plans(repeats: int) -> list[dict[str, Any]]:
    kept = Joints(((1, places(SAMPLES, BATCH_SIZE)),))
    ratios, new = [], []
    for _ in range(repeats):
        without, joined = source(), source()
        for of, joints in ((without, Joints()), (joined, kept)):
            planned_s(of, 2, joints)
        times = [(planned_s(without, cycle, Joints()), planned_s(joined, cycle, kept)) for cycle in range(3, 10)]
        ratios.append(float(np.median([with_joints / plain for plain, with_joints in times])))
        some = places(SAMPLES, BATCH_SIZE)  # one more in each cycle, and one of the first goes
        changes = tuple((c, tuple(sorted(some[c % 3 : max(1, c - 1)]))) for c in range(1, 17))
        new.append(planned_s(source(), 16, Joints(changes)))
    return [
        claim("plan of 1.3 million samples with 15 joints, of one without", "x", ratios, most=1.2),
        claim("a new feeder, in the order of 16 cycles of joints", "s", new, most=5),
    ]


def handed_over_s(name: str, alive: tuple[int, ...], batches: int) -> float:
    """Return the time of a batch of a trainer that reads a feed with these joints."""
    rows = penstock.ArraySource({"x": np.zeros((20_000, 2048), np.uint8)}, batch_size=64, seed=1)
    states: list[dict[str, Any]] = []
    for turn in range(2):
        with penstock.Feeder(rows, name, seed=1) as feeder, penstock.attach(name, 64) as loader:
            thread = threading.Thread(target=feeder.run)
            thread.start()
            if not turn:
                next(iter(loader))
                states.append({**loader.state_dict(), "joints": {"in_force": [], "alive": list(alive)}})
            else:  # of the state's joints
                loader.load_state_dict(states[0])
                rest = sum(1 for _ in loader)
                assert rest
                assert len(feeder.statistics().trainers) == 1
                since_s = time.perf_counter()
                got = 0
                while got < batches:
                    got += sum(1 for _ in islice(loader, batches - got))
                took_s = (time.perf_counter() - since_s) / batches
                kept = feeder._state.joints
                assert kept is not None and len(kept.joints.of(kept.opened)) == len(alive)
            feeder.close()
            thread.join()
    return took_s


def claims_of_handing_over(repeats: int) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    some = places(20_000, 64)
    handed_over_s("warm", (), 500)
    ratios = [handed_over_s("with", some, 30_000) / handed_over_s("without", (), 30_000) for _ in range(repeats)]
    return [claim("hand-over with 15 joints, of one with none", "x", ratios, most=1.05)]
