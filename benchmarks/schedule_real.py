"""Eight JPEG trainings on two data sets and two simulated GPUs, for real: the schedule that shares, and others.

python -m benchmarks.schedule_real [--repeats 3] [--epochs 50] [--json FILE] [--plot FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.claim import claim, report

EXAMPLES = Path(__file__).parents[1] / "examples"
LEARNING_RATES = (0.1, 0.03, 0.01, 0.003)
ARMS: Mapping[str, tuple[str, ...]] = {
    "shared": (),
    "FIFO": ("--policy", "fifo", "--share", "none"),
    "best without sharing": ("--share", "none"),
}


def spec(folder: Path, epochs: int, gpu_ms: float) -> Path:
    """Write the file of the eight trainings."""
    command = f"{EXAMPLES / 'sweep.py'} --data {{data}} --lr {{lr}} --epochs {epochs} --gpu-ms {gpu_ms}"
    grid = {"data": ["even", "odd"], "lr": list(map(str, LEARNING_RATES))}
    group = {"name": "sweep", "command": command, "grid": grid, "epochs": epochs}
    path = folder / "sweep.yaml"
    path.write_text(json.dumps({"machine": {"gpus": 2, "simulated": True}, "groups": [group]}))
    return path


def penstock(folder: Path, *words: str) -> Any:
    """Run a command, and return the JSON that it prints."""
    environment = {**os.environ, "PENSTOCK_STORE": str(folder / "store"), "PENSTOCK_DIR": str(folder / "feeds")}
    command = [sys.executable, "-m", "penstock", *words, "--json"]
    with open(folder / "log", "a") as log:
        ended = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, check=False
        )
    if ended.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{(folder / 'log').read_text()[-3000:]}")
    return json.loads(ended.stdout[ended.stdout.index("\n{") if not ended.stdout.startswith("{") else 0 :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--gpu-ms", type=float, default=0.3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "feeds").mkdir(mode=0o700)
        file = spec(folder, arguments.epochs, arguments.gpu_ms)
        profiles = penstock(folder, "schedule", "profile", str(file))
        found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
        for repeat in range(arguments.repeats):
            for arm in ARMS if repeat % 2 == 0 else reversed(ARMS):
                plot = ("--plot", str(arguments.plot)) if arguments.plot and arm == "shared" else ()
                found[arm].append(penstock(folder, "schedule", "run", str(file), *ARMS[arm], *plot))
                print(arm, found[arm][-1]["makespan_s"], found[arm][-1]["planned_makespan_s"], flush=True)
                if arguments.json:
                    finish(found, profiles, arguments)


def finish(found: dict[str, list[dict[str, Any]]], profiles: Any, arguments: argparse.Namespace) -> None:
    """Judge what was measured up to now."""
    seconds = {arm: [each["makespan_s"] for each in runs] for arm, runs in found.items()}
    if not all(seconds.values()):
        return

    def ratios(to: str) -> list[float]:
        return [one / other for one, other in zip(seconds["shared"], seconds[to], strict=False)]

    off = [abs(each["makespan_s"] / each["planned_makespan_s"] - 1) for each in found["shared"]]
    claims = [
        claim("eight real trainings: makespan of FIFO's", "ratio", ratios("FIFO"), most=0.5),
        claim("of the best without sharing", "ratio", ratios("best without sharing"), most=0.65),
        claim("predicted against measured, off by", "ratio", off, most=0.10),
    ]
    report(claims, arguments.json, seconds=seconds, profiles=profiles, runs=found, epochs=arguments.epochs)


if __name__ == "__main__":
    main()
