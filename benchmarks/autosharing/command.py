"""What sharing without changed lines brings: unmodified scripts with and without ``--share``, by turns, into JSON.

python -m benchmarks autosharing --json benchmarks/results/autosharing.json [--data FOLDER]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.claim import JpegFolder, ResultsFile, claim, report

from penstock.bench.demo_images import cached_images

TOGETHER = 4
SCRIPT = Path(__file__).with_name("script.py")


def runs(count: int, share: bool, *words: str) -> list[dict[str, float]]:
    """Run the script so often at once; return what each run measured."""
    folder = Path(tempfile.mkdtemp())
    try:
        command = [sys.executable, "-m", "penstock", "run", "-n", str(count), "--listeners", "none"]
        command += ["--share"] * share + [sys.executable, str(SCRIPT), "--out", str(folder), *words]
        done = subprocess.run(
            command,
            env={**os.environ, "PENSTOCK_STORE": str(folder / "store")},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        if share and done.stderr.count("reads feed") + done.stdout.count("reads feed") != count:
            raise SystemExit(f"not all runs share:\n{done.stdout}{done.stderr}")
        return [json.loads(path.read_text()) for path in folder.glob("*.json")]
    finally:
        shutil.rmtree(folder)


def samples_per_s(found: list[dict[str, float]]) -> float:
    seconds = max(each["ended_s"] for each in found) - min(each["began_s"] for each in found)
    return sum(each["samples"] for each in found) / seconds


def cpu_ms(*words: str) -> float:
    """CPU time of a sample in the script's own process, in milliseconds."""
    [found] = runs(1, False, *words)
    return 1000 * found["cpu_s"] / found["samples"]


def main(data: JpegFolder = None, file: ResultsFile = None, repeats: int = 5, epochs: int = 4) -> None:
    options = ["--data", str(data or cached_images()), "--epochs", str(epochs)]
    kinds = {"read": ("--work", "read"), "train": ("--work", "train")}
    speeds: dict[str, list[float]] = {}
    prepare_ms, train_ms = list[float](), list[float]()
    for repeat in range(repeats):
        for kind, words in kinds.items():
            for count in (TOGETHER, 1) if kind == "read" else (TOGETHER,):
                for share in (False, True) if repeat % 2 else (True, False):
                    speed = samples_per_s(runs(count, share, *options, *words))
                    speeds.setdefault(f"{kind} {count} {'shared' if share else 'own'}", []).append(speed)
                    print(
                        f"{repeat} {kind} x{count} {'shared' if share else 'own'}: {speed:.0f} samples/s",
                        flush=True,
                    )
        prepare_ms.append(cpu_ms(*options, "--work", "read", "--workers", "0"))
        train_ms.append(cpu_ms(*options, "--work", "only train"))

    def ratios(kind: str) -> list[float]:
        return [one / own for one, own in zip(speeds[f"{kind} shared"], speeds[f"{kind} own"], strict=True)]

    c, h = median(prepare_ms), median(train_ms)
    best = TOGETHER * (c + h) / (c + TOGETHER * h)
    claims = [
        claim(
            f"{TOGETHER} unmodified runs that only read, --share against without", "x", ratios("read 4"), least=3.5
        ),
        claim(
            f"{TOGETHER} unmodified runs that train, of what CPU time permits ({best:.2f} x)",
            "",
            [ratio / best for ratio in ratios("train 4")],
            least=0.9,
        ),
        claim("one unmodified run, --share against without", "", ratios("read 1"), least=0.97),
    ]
    measured = {"samples_per_s": speeds, "prepare_cpu_ms": prepare_ms, "train_cpu_ms": train_ms}
    report(claims, file, **measured)
