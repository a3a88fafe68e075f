"""Measures runs of different speed on one feed: by pace, together, and with feeds of their own.

python -m benchmarks pace FOLDER_OF_JPEGS --json benchmarks/results/pace.json

Nothing else may run on the machine. Of "images", runs read JPEGs at 224 pixels and sleep, or compute, for each
step: an arm at a time. Of "limits", feeds read arrays, of which all of a world get so many a second, and hardly
use the CPU: all worlds at once. "costs" are those of pace itself.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from benchmarks.claim import ResultsFile, report
from benchmarks.pace.claims import FROM_S, STOPPED_S, Found, claims, claims_of_costs
from benchmarks.pace.run import Run
from benchmarks.pace.worlds import World, ran
from rich.console import Console

from penstock.errors import BadSetting

CONSOLE = Console()

FAST, SLOW = Run(16, 0.04), Run(16, 0.08)  # 400 and 200 images/s
FOUR = [Run(16, 16 / rate) for rate in (400, 360, 280, 200)]
EQUAL = [SLOW] * 4
PAUSES = {"validates": (20_000, (5.0, 35.0)), "validates between": (7_000, (5.0, 0.0))}


def limited() -> dict[str, World]:
    """Return worlds of arrays, which all run at once."""
    worlds = {
        f"lock {factor} for {len(runs)}": World(runs, limits=[(0, 200 * factor)])
        for factor in (1.04, 1.4, 2.0)
        for runs in ([FAST, SLOW], FOUR)
    }
    for name, (samples, pauses) in PAUSES.items():
        runs = [Run(16, 0.08, starts_s=20.0 * i, pauses=pauses) for i in range(4)]
        worlds[name] = World(runs, samples=samples, arms=("pace", "own"))
    return worlds | {
        "lock later": World([FAST, SLOW], limits=[(240, 208)]),
        "equal": World(EQUAL),
        "slow one ends": World([FAST, FAST, Run(16, 0.16, ends_s=200)]),
        "as fast later": World([FAST, Run(16, 0.08, then=(200, 0.04))]),
        "stopped": World(EQUAL, stopped=STOPPED_S, seconds=420, arms=("pace",)),
    }


def of_images(most: float, seconds: float) -> dict[str, World]:
    """Return worlds of JPEGs, of which the machine decodes at most so many a second."""
    slow = most / 2.5
    rates = [most / 20 * rate for rate in (8, 4, 2, 1)]
    runs = {
        "1 : 2": [Run(8, 0.04), Run(16, 0.16)],
        "1 : 2 at 2.5": [Run(16, 8 / slow), Run(16, 16 / slow)],
        "1 : 2 : 4 : 8": [Run(8, 8 / rate) for rate in rates],
        "1 : 2 : 4 : 8, computing": [Run(8, 8 / rate, burns=True) for rate in rates],
    }
    until_s = FROM_S["images"] + seconds
    return {
        name: World(each, "images", seconds=until_s, arms=("pace", "own", *["together"] * each[0].burns))
        for name, each in runs.items()
    }


def handing_over() -> list[dict[str, Any]]:
    """Return what runs take that do nothing else, and what pace costs; it finds no reason to try a second feed."""
    found = list[dict[str, Any]]()
    for trainers in (1, 4, 8):
        for arm in ("pace", "together"):
            world = World([Run(16, 0.0)] * trainers, "arrays", seconds=20, samples=2_000, arms=(arm,))
            name = f"{trainers} that only take"
            with tempfile.TemporaryDirectory() as notes:
                trial = ran({name: world}, notes, say)[name][arm]
                watched_s, thread_s, feeder_s = map(
                    float, *(each.read_text().split() for each in Path(notes).iterdir())
                )
            cpu_s = feeder_s + sum(took.cpu_s for took in trial.took)
            figures = {"cpu_us": 1e6 * cpu_s / sum(took.batches for took in trial.took)}
            figures |= {"slowest": min(trial.rates(5)), "thread_cores": thread_s / watched_s}
            found.append({"trainers": trainers, "arm": arm, **figures})
    return found


def say(words: str) -> None:
    CONSOLE.print(words, highlight=False)


def main(
    folder: Annotated[Path, typer.Argument(help="Folder of JPEGs.")],
    json_file: ResultsFile = None,
    seconds: Annotated[float, typer.Option(help="Time that is counted of each arm with JPEGs.")] = 240.0,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    parts: Annotated[str, typer.Option(help="Which, separated by commas.")] = "images,limits,costs",
    only: Annotated[list[str] | None, typer.Option(help="World of images; may be repeated. All else.")] = None,
) -> None:
    """Measure how each run goes, arms by turns."""
    found: Found = {}
    costs = list[dict[str, Any]]()
    for _ in range(repeats):
        for part in parts.split(","):
            if part == "images":
                one = World([Run(32, 0.0)], "images", seconds=40, arms=("together",))
                most = ran({"most": one}, str(folder), say)["most"]["together"].rates(15)[0]
                worlds = of_images(most, seconds)
                for name, world in worlds.items() if only is None else [(name, worlds[name]) for name in only]:
                    arms = [World(world.runs, "images", seconds=world.seconds, arms=(arm,)) for arm in world.arms]
                    took = [ran({name: arm}, str(folder), say)[name] for arm in arms]
                    found.setdefault(name, []).append({arm: t for each in took for arm, t in each.items()})
            elif part == "limits":
                for name, trials in ran(limited(), "", say).items():
                    found.setdefault(name, []).append(trials)
            elif part == "costs":
                costs += handing_over()
            else:
                raise BadSetting(f"--parts: {part!r} is none of images, limits, costs")
    raw = {name: [{arm: t.as_json() for arm, t in each.items()} for each in r] for name, r in found.items()}
    measured = {"worlds": raw, "costs": costs, "seconds": seconds}
    report([], json_file, **measured)  # if what follows fails, this is not lost
    report([*claims(found), *claims_of_costs(costs)], json_file, **measured)
