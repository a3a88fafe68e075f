"""Compares the loaders of ``penstock bench load`` with DALI, tf.data and SPDL, in environments of their own.

python -m benchmarks loaders DIR --peer dali=.venv-dali/bin/python
"""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from benchmarks.claim import ResultsFile

from penstock.basics.results import as_json, progress, save
from penstock.basics.terminal import console
from penstock.bench.experiment import ArmFailed
from penstock.bench.load import LoadFigures, LoadSettings, measure, shown

ARMS = Path(__file__).parent / "peers/loaders/arms.py"
_START_S = 120.0


def peer(name: str, python: str, settings: LoadSettings, _: int) -> LoadFigures:
    """Measure a peer once."""
    numbers = settings.size, settings.batch_size, settings.workers, settings.seconds
    words = [python, str(ARMS), name, settings.folder, *map(str, numbers)]
    ran = subprocess.run(
        words, capture_output=True, text=True, timeout=_START_S + 4 * settings.seconds, check=False
    )
    if ran.returncode:
        raise ArmFailed((ran.stderr.strip().splitlines() or [f"exit {ran.returncode}"])[-1])
    return msgspec.convert(json.loads(ran.stdout.splitlines()[-1]), LoadFigures)


def main(
    folder: str,
    peers: Annotated[list[str], typer.Option("--peer", metavar="LOADER=PYTHON")],
    repeats: int = 5,
    seconds: float = 5.0,
    workers: int = 2,
    json: ResultsFile = None,
) -> None:
    """Measure them in turns, print a table, and save JSON."""
    settings = LoadSettings(
        folder=folder, size=224, batch_size=128, workers=workers, seconds=seconds, repeats=repeats
    )
    named = dict(each.partition("=")[::2] for each in peers)
    terminal = console()
    with progress(terminal) as tell:
        report = measure(
            settings, None, tell, {name: partial(peer, name, python, settings) for name, python in named.items()}
        )
    terminal.print(shown(report), soft_wrap=True)
    save(json, lambda file: file.write_bytes(as_json(report)), terminal)
