"""What ``penstock advise`` chooses, beside a sweep of all settings: batch sizes, workers, trainings at once.

python -m benchmarks.fit --json benchmarks/results/fit.json

The sweep measures each setting for longer than a trial does. Chosen and best throughputs are the sweep's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.children import ENVIRONMENT
from benchmarks.claim import claim, report

from penstock.fit.trial import Script, ScriptTrials, Trial
from penstock.runs.store import Store
from penstock.runs.trial import WARM_BATCHES, Bounds

SCRIPT = "train.py"
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
WORKERS = (0, 1, 2, 3, 4, 5, 6)
KINDS = ("small", "convolution", "recurrent", "transformer", "tabular", "augmented")
LIMIT_BYTES = 3 << 30
TOGETHER_BYTES = 16 << 30


class Asked(NamedTuple):
    """What a command answered, and its time."""

    answer: dict[str, Any]
    seconds: float


def ask(what: str, words: Sequence[str], store: Path, *options: str) -> Asked:
    """Call ``penstock advise`` anew."""
    began = time.monotonic()
    command = [sys.executable, "-m", "penstock", "advise", what, "--json", "--store", str(store), *options, "--"]
    found = subprocess.run(
        [*command, *words], capture_output=True, text=True, check=False, env={**os.environ, **ENVIRONMENT}
    )
    assert found.stdout, found.stderr
    return Asked(json.loads(found.stdout), time.monotonic() - began)


def sweep(
    words: Sequence[str],
    values: Iterable[int],
    store: Path,
    repeats: int,
    *,
    shared: Sequence[int] | None = None,
    of_workers: bool = False,
) -> dict[tuple[int, bool], list[Trial]]:
    """Measure each setting, several times in turn: by the setting, and whether it shares.

    Of settings that are workers, what they have ready when the first step is over does not count.
    """
    settings = [*((value, False) for value in values), *((value, True) for value in shared or ())]
    found: dict[tuple[int, bool], list[Trial]] = {each: [] for each in settings}
    with Store.open(store) as opened:
        trials = ScriptTrials(
            opened,
            Script(tuple(words), Path.cwd()),
            "sweep",
            group_id="",
            bounds=Bounds(60.0, LIMIT_BYTES if shared is None else TOGETHER_BYTES),
            setting="value",
            listens=False,
        )
        for _ in range(repeats):
            for (value, share), tried in found.items():
                warm = max(WARM_BATCHES, 2 * value) if of_workers else WARM_BATCHES
                tried.append(trials.run(value, 1 if shared is None else value, share=share, warm=warm))
    return found


def rates(found: dict[tuple[int, bool], list[Trial]]) -> dict[tuple[int, bool], float]:
    return {setting: median(each.samples_per_s for each in tried) for setting, tried in found.items()}


def named(found: dict[tuple[int, bool], float]) -> dict[str, float]:
    return {f"{value}{' shared' * share}": rate for (value, share), rate in found.items()}


def batch_sizes(folder: Path, repeats: int, kinds: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """Choose batch sizes of scripts of different kinds."""
    parts: list[float] = []
    memory_off: list[float] = []
    took_s: list[float] = []
    measured: dict[str, Any] = {}
    for kind in kinds:
        words = (str(Path(__file__).with_name("fit_scripts.py")), kind, "--batch-size", "{}")
        swept = sweep(words, SIZES, folder / kind, repeats)
        known = rates(swept)
        best = max(known.values())
        asked = [
            ask("batch-size", words, folder / f"{kind} {turn}", "--memory", "3GiB") for turn in range(repeats)
        ]
        chosen = [each.answer["chosen"] for each in asked]
        part = median(known[size, False] for size in chosen) / best
        predicted = [each.answer["predicted_bytes"][0] for each in asked if each.answer["predicted_bytes"]]
        off = [
            abs(said / median(one.memory_bytes for one in swept[size, False]) - 1)
            for said, size in zip(predicted, chosen, strict=False)
        ]
        parts.append(part)
        memory_off.append(median(off) if off else 0.0)
        took_s += [each.seconds for each in asked]
        spread = [
            min(one.samples_per_s for one in swept[chosen[0], False]),
            max(one.samples_per_s for one in swept[chosen[0], False]),
        ]
        measured[kind] = {
            "chosen": chosen,
            "rates": named(known),
            "spread at the first chosen": spread,
            "of the best": part,
        }
        print(f"{kind}: chosen {chosen}, {part:.3f} of the best, memory off by {memory_off[-1]:.1%}", flush=True)
    return [
        claim(
            "chosen batch size: throughput, of a sweep's best (worst of the scripts)",
            "x",
            [min(parts)],
            least=0.95,
        ),
        claim(
            "chosen batch size: memory, predicted against measured, off by (worst)",
            "",
            [max(memory_off)],
            most=0.1,
        ),
        claim("chosen batch size: time", "s", took_s, most=180),
    ], measured


def workers(folder: Path, repeats: int) -> tuple[list[Any], dict[str, Any]]:
    """Choose workers of scripts that prepare little and much."""
    parts: list[float] = []
    measured: dict[str, Any] = {}
    for kind in ("small", "convolution", "augmented", "tabular"):
        words = (str(Path(__file__).with_name("fit_scripts.py")), kind, "--workers", "{}")
        known = rates(sweep(words, WORKERS, folder / f"{kind} of workers", repeats, of_workers=True))
        chosen = [ask("workers", words, folder / f"{kind} w{turn}").answer["chosen"] for turn in range(repeats)]
        parts.append(median(known[count, False] for count in chosen) / max(known.values()))
        measured[kind] = {"chosen": chosen, "rates": named(known)}
        print(f"{kind}: chosen {chosen} workers, {parts[-1]:.3f} of the best of {named(known)}", flush=True)
    return [
        claim("chosen workers: throughput, of the best of 0 to 6 (worst)", "x", [min(parts)], least=0.95)
    ], measured


def together(folder: Path, repeats: int) -> tuple[list[Any], dict[str, Any]]:
    """Choose how many of three scripts run at once."""
    parts: list[float] = []
    measured: dict[str, Any] = {}
    for kind in ("small", "augmented", "recurrent"):
        words = (str(Path(__file__).with_name("fit_scripts.py")), kind)
        known = rates(sweep(words, (1, 2, 3, 4), folder / f"{kind} together", repeats, shared=(2, 3, 4)))
        answer = ask("together", words, folder / f"{kind} t").answer
        chosen, best = known[answer["chosen"], answer["share"]], max(known.values())
        parts.append(chosen / best)
        measured[kind] = {"chosen": answer["chosen"], "share": answer["share"], "rates": named(known)}
        print(f"{kind}: {answer['sentences'][0]} {parts[-1]:.3f} of the best of {named(known)}", flush=True)
    return [
        claim("named together: throughput, of the best measured (worst)", "x", [min(parts)], least=0.95)
    ], measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="batch_sizes,workers,together")
    parser.add_argument("--kinds", default=",".join(KINDS))
    arguments = parser.parse_args()
    claims: list[Any] = []
    measured: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        for part in arguments.only.split(","):
            more = {"kinds": arguments.kinds.split(",")} if part == "batch_sizes" else {}
            found, measured[part] = globals()[part](Path(place), arguments.repeats, **more)
            claims += found
    report(claims, arguments.json, measured=measured)


if __name__ == "__main__":
    main()
