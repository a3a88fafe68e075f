"""Scripts that are started by hand, seconds apart, or that break epochs off: processes that read JPEGs."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import cv2
from benchmarks.children import ENVIRONMENT, command
from benchmarks.claim import claim
from benchmarks.join.reader import BATCH_SIZE, BATCHES, SAMPLES

import penstock
from penstock.feed.launch.feeds import feeds
from penstock.feed.statistics import FeederStatistics

APART_S = 0, 3, 10
EPOCHS = 5
STEP_S = 0.06
BROKEN = BATCHES // 10


def shrunk(source: Path, target: Path, height: int = 224) -> None:
    """Write a folder's JPEGs at a height of so many pixels."""
    for i, path in enumerate(sorted(source.rglob("*.[jJ][pP]*[gG]"))):
        image = cv2.imread(str(path))
        scale = height / min(image.shape[:2])
        cv2.imwrite(str(target / f"{i:05}.jpg"), cv2.resize(image, None, fx=scale, fy=scale))


def started(folder: Path, *words: Any) -> subprocess.Popen[str]:
    line = command("benchmarks.join.reader", str(folder), *map(str, words))
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env={**os.environ, **ENVIRONMENT})


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"a reader ended with {process.returncode}")
    return json.loads(output.splitlines()[-1])


def statistics_of(name: str) -> FeederStatistics:
    return next(feed for feed in feeds() if feed.name == name)


def by_hand(folder: Path, name: str) -> tuple[list[dict[str, Any]], float]:
    """Start three scripts, seconds apart; return what each tells, and how many samples their feed has loaded."""
    since_s, processes = time.monotonic(), []
    for apart_s in APART_S:
        time.sleep(max(0.0, since_s + apart_s - time.monotonic()))
        processes.append(started(folder, "--name", name, "--epochs", EPOCHS))
    found = [told(process) for process in processes]
    if not name:
        return found, 0
    loaded = statistics_of(name).samples
    penstock.stop(name)
    return found, loaded


def claims_of_starts(folder: Path, repeats: int) -> list[dict[str, Any]]:
    blocks, waits, loaded, times = ([] for _ in range(4))
    for repeat in range(repeats):
        own, _ = by_hand(folder, "")
        found, samples = by_hand(folder, f"join {repeat}")
        needed = (
            max(start[0] * SAMPLES + start[1] for each in found if (start := each["start"])) + EPOCHS * SAMPLES
        )
        loaded.append(samples / needed)
        shared_s, own_s = (
            max(each["ended_s"] for each in arm) - min(each["began_s"] for each in arm) for arm in (found, own)
        )
        times.append(shared_s / own_s)
        block_s = shared_s / (samples / BATCH_SIZE)
        late = found[1:]
        blocks += [each["passed_over"] / BATCH_SIZE for each in late]
        waits += [each["first_s"] / block_s for each in late]
    return [
        claim("late by 3 s and 10 s: blocks given to others before the first one", "blocks", blocks, most=1),
        claim("late by 3 s and 10 s: wait for the first batch, in times of a block", "x", waits, most=2),
        claim("three scripts: samples loaded, of those needed", "x", loaded, most=1.02),
        claim("three scripts, five epochs of reading: time, of loaders of their own", "x", times, most=0.45),
    ]


def claims_of_breaks(folder: Path, repeats: int) -> list[dict[str, Any]]:
    both, waits = [], []
    for repeat in range(repeats):
        name = f"break {repeat}"
        pair = [
            started(folder, "--name", name, "--epochs", 15, "--batches", BROKEN, "--expect", 2) for _ in range(2)
        ]
        for each in pair:
            told(each)
        both.append(statistics_of(name).samples / (15 * BROKEN * BATCH_SIZE))
        penstock.stop(name)
        other = started(folder, "--name", name, "--epochs", 2, "--step-s", STEP_S, "--expect", 2)
        first = started(
            folder, "--name", name, "--epochs", 15, "--batches", BROKEN, "--step-s", STEP_S, "--expect", 2
        )
        found = told(first)
        waits.append(found["wait_s"] / (found["ended_s"] - found["began_s"]))
        told(other)
        penstock.stop(name)
    return [
        claim("two break off at 10% of each epoch: samples loaded, of those of one", "x", both, most=1.1),
        claim("one breaks off at 10%, one reads on: the first one's waits, of its time", "x", waits, most=0.1),
    ]
