"""One GPU, several trainers: a loader each, one feed with its ring on the host, one with its ring on the GPU.

python benchmarks/share_gpu.py --json benchmarks/results/share-gpu-NAME.json

Blocks of bytes come from memory, so that moving them is what is measured. Each
trainer is a process; it touches each block on the device and goes on at once.
With --device cpu it runs without a GPU, as a trial of the script itself.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from itertools import cycle, product
from pathlib import Path
from typing import Annotated, Any

import msgspec
import psutil
import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import penstock
from penstock.bench.machine import describe
from penstock.feed.feeds import stop

NAME = "share-gpu"
ARMS = ("separate", "host ring", "GPU ring")
WARM_UP_S = 2.0
START_S = 4.0
BLOCKS = 4
ROWS = 16


class Blocks:
    """The same few batches without end."""

    def __init__(self, nbytes: int) -> None:
        self._blocks = [torch.full((ROWS, nbytes // ROWS), i, dtype=torch.uint8) for i in range(BLOCKS)]

    def __iter__(self) -> Any:
        return cycle(self._blocks)


def feeder(order: dict[str, Any]) -> None:
    with penstock.Feeder(Blocks(order["nbytes"]), NAME, window="1GiB", memory=order["memory"]) as feed:
        print("ready", flush=True)
        feed.run()


def trainer(order: dict[str, Any]) -> None:
    """Count blocks in the seconds that all trainers measure."""
    device = torch.device(order["device"])
    if order["arm"] == "separate":
        batches = (block.to(device, non_blocking=True, copy=True) for block in Blocks(order["nbytes"]))
    else:
        batches = iter(penstock.attach(NAME, device=order["device"], wait_s=60))
    total = torch.zeros((), dtype=torch.int64, device=device)
    counted, began, cpu_s = 0, 0.0, 0.0
    while True:
        total += next(batches)[:, ::4096].sum()
        now = time.time()
        if not began and now >= order["from_s"]:
            _synchronize(device)
            counted, began, cpu_s = 0, time.time(), _cpu_s()
        counted += 1
        if began and now >= order["until_s"]:
            break
    _synchronize(device)
    if began > (order["from_s"] + order["until_s"]) / 2:
        sys.exit("this trainer began late: something else takes the machine's time")
    took = time.time() - began
    held = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    told = {"blocks_per_s": counted / took, "cpu_s_per_block": (_cpu_s() - cpu_s) / counted, "gpu_bytes": held}
    print(json.dumps(told), flush=True)


def cell(arm: str, trainers: int, nbytes: int, seconds: float, device: str) -> dict[str, Any]:
    """Measure one case."""
    serving = None
    if arm != "separate":
        memory = device if arm == "GPU ring" else "host"
        serving = _start("feeder", {"nbytes": nbytes, "memory": memory})
        assert serving.stdout is not None
        assert serving.stdout.readline(), "the feeder failed"
    start_s = time.time() + WARM_UP_S + START_S + 2 * trainers
    order = {"arm": arm, "nbytes": nbytes, "device": device, "from_s": start_s, "until_s": start_s + seconds}
    running = [_start("trainer", order) for _ in range(trainers)]
    told = [json.loads(each.communicate()[0]) for each in running]
    feed: dict[str, Any] = {}
    if serving is not None:
        (stands,) = penstock.feeds()
        crossings = 1 if arm == "GPU ring" else trainers
        feed = {
            "sharing": stands.sharing,
            "feeder_cpu_s": sum(psutil.Process(serving.pid).cpu_times()[:2]),
            "host_to_device_bytes_per_block": crossings * stands.bytes // stands.blocks,
        }
        stop(NAME)
        serving.communicate()
    return {"arm": arm, "trainers": trainers, "block_bytes": nbytes, "each": told, **feed}


def main(
    device: Annotated[str, typer.Option(help="The GPU; cpu tries the script out.")] = "cuda:0",
    trainers: Annotated[str, typer.Option(help="How many trainers at once, case by case.")] = "1,2,4,8",
    block_mb: Annotated[str, typer.Option(help="Sizes of blocks, MB.")] = "10,100",
    seconds: Annotated[float, typer.Option(help="Counted for each case.")] = 5.0,
    repeats: Annotated[int, typer.Option(help="Times that each case is measured, by turns.")] = 5,
    json_path: Annotated[Path | None, typer.Option("--json", help="Where to save what was measured.")] = None,
) -> None:
    arms = ARMS if device != "cpu" else ARMS[:2]
    cases = list(product(range(repeats), map(int, trainers.split(",")), map(float, block_mb.split(",")), arms))
    cells = [
        {"repeat": repeat, **cell(arm, k, int(mb * 1e6), seconds, device)}
        for repeat, k, mb, arm in track(cases, "measuring")
    ]
    _print(cells)
    if json_path is not None:
        report = {"benchmark": "share_gpu", "machine": msgspec.to_builtins(describe()), "device": device}
        if device != "cpu":
            report["gpu"] = torch.cuda.get_device_name(device)
            report["cuda"] = torch.version.cuda
        json_path.write_text(json.dumps({**report, "seconds": seconds, "cells": cells}, indent=1))


def _print(cells: list[dict[str, Any]]) -> None:
    table = Table("blocks", "trainers", "arm", "slowest, blocks/s", "together, GB/s", "trainer CPU, µs/block")
    cases = dict.fromkeys((c["block_bytes"], c["trainers"], c["arm"]) for c in cells)
    for nbytes, k, arm in cases:
        mine = [c["each"] for c in cells if (c["block_bytes"], c["trainers"], c["arm"]) == (nbytes, k, arm)]
        slowest = statistics.median(min(t["blocks_per_s"] for t in each) for each in mine)
        together = statistics.median(sum(t["blocks_per_s"] for t in each) * nbytes / 1e9 for each in mine)
        cpu_us = statistics.median(max(t["cpu_s_per_block"] for t in each) * 1e6 for each in mine)
        table.add_row(f"{nbytes // 10**6} MB", str(k), arm, f"{slowest:,.0f}", f"{together:.2f}", f"{cpu_us:,.0f}")
    Console().print(table)


def _start(role: str, order: dict[str, Any]) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__, role, json.dumps(order)], stdout=subprocess.PIPE, text=True)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in ("feeder", "trainer"):
        {"feeder": feeder, "trainer": trainer}[sys.argv[1]](json.loads(sys.argv[2]))
    else:
        typer.run(main)
