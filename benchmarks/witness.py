"""What the witness costs two runs on one feed of JPEGs: how much later the first batch comes, and CPU time.

python -m benchmarks witness --json benchmarks/results/witness.json [--data FOLDER]

Each repeat trains twice, with and without it: a run starts the feed, and another joins it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.children import ENVIRONMENT, command
from benchmarks.claim import JpegFolder, ResultsFile, claim, report
from benchmarks.measure.family import family
from benchmarks.share.jpeg import Jpegs, files_in

import penstock
from penstock.autosharing.script_feed import Proof
from penstock.bench.demo_images import cached_images
from penstock.linux.forked_call import ForkedCall

SAMPLES, BATCH, WORKERS = 4096, 64, 2


def train(order: dict[str, Any]) -> None:
    """Read as this order says, and print how long the first batch took, and and what the witness took."""
    import cv2
    from torch.utils.data import DataLoader, Dataset

    class Images(Jpegs, Dataset[Any]):
        pass

    cv2.setNumThreads(0)
    calls: list[ForkedCall] = []
    began_call = ForkedCall.__init__

    def begin(call: ForkedCall, *arguments: Any) -> None:
        calls.append(call)
        began_call(call, *arguments)

    ForkedCall.__init__ = begin
    begin_epoch, held_s = Proof.begin_epoch, list[float]()

    def timed(*arguments: Any) -> None:
        began_s = time.perf_counter()
        if order["witness"]:
            begin_epoch(*arguments)
        held_s.append(time.perf_counter() - began_s)

    Proof.begin_epoch = timed
    penstock.autoshare()
    loader: Any = DataLoader(Images(files_in(order["data"]), SAMPLES), BATCH, shuffle=True, num_workers=WORKERS)
    first_s = 0.0
    for _ in range(order["epochs"]):
        began_s = time.perf_counter()
        for _ in loader:
            if not first_s:
                first_s = time.perf_counter() - began_s
                print("first", flush=True)
    cpu_s = sum(call.cpu_s for call in calls)
    told = {"first_s": first_s, "held_s": held_s, "children": len(calls), "children_cpu_s": cpu_s}
    print(json.dumps(told))


def begun(order: dict[str, Any], folder: str) -> subprocess.Popen[str]:
    """Start a run, and return when it has had its first batch."""
    run = subprocess.Popen(
        command("benchmarks.witness", json.dumps(order)),
        env={**os.environ, **ENVIRONMENT, "PENSTOCK_DIR": folder},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None and run.stdout.readline() == "first\n"
    return run


def measured(order: dict[str, Any]) -> dict[str, Any]:
    """Train twice on one feed; return what the two runs tell, and the CPU time of all their processes."""
    with family() as members, tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        runs = [begun(order, folder), begun(order, folder)]
        told = [json.loads(run.communicate()[0]) for run in runs]
        members.end()
        return {"runs": told, "cpu_s": members.cpu_s()}


def main(
    data: JpegFolder = None,
    file: ResultsFile = None,
    repeats: int = 5,
    epochs: int = 8,
) -> None:
    images = str((data or cached_images()).resolve())
    raw: list[dict[str, Any]] = []
    for repeat in range(repeats):
        orders = [{"data": images, "epochs": epochs, "witness": on} for on in (True, False)]
        turns = {order["witness"]: measured(order) for order in (orders if repeat % 2 else reversed(orders))}
        raw.append({"with": turns[True], "without": turns[False]})
        print(json.dumps(raw[-1]), flush=True)

    later = [each["with"]["runs"][0]["first_s"] - each["without"]["runs"][0]["first_s"] for each in raw]
    held = [[run["held_s"][0] for run in each["with"]["runs"]] for each in raw]
    # The feeder's children do the same work as those of the first run.
    children = [each["with"]["runs"] for each in raw]
    parts = [
        100 * (2 * first["children_cpu_s"] + second["children_cpu_s"]) / each["with"]["cpu_s"]
        for each, (first, second) in zip(raw, children, strict=True)
    ]
    claims = [
        claim("first batch of the run that starts the feed: later by", "s", later, most=0.3),
        claim("the same: of that, held up by the witness", "s", [starter for starter, _ in held], most=0.3),
        claim(
            "first batch of a run that joins: held up by the witness", "s", [joins for _, joins in held], most=0.3
        ),
        claim("CPU time of the witness's children, of that of both trainings", "%", parts, most=0.5),
    ]
    report(claims, file, raw=raw)


if __name__ == "__main__":
    train(json.loads(sys.argv[1]))
