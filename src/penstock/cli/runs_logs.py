"""``penstock runs logs``: what runs have printed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated

import typer

from penstock.cli.command import AsJson, StoreFolder, option, print_json
from penstock.cli.runs_words import Named
from penstock.errors import BadSetting
from penstock.runs.keeper.output import read_output
from penstock.runs.record import ENDED, RunRecord
from penstock.runs.store import Store

_POLL_S = 0.2


def logs(
    named: Named,
    follow: Annotated[bool, option("-f", "--follow", "Go on until the runs have ended.")] = False,
    as_json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """Print what runs printed; that of several with their names before the lines.

    JSON is an object for one run, and a list for several.
    """
    if as_json and follow:
        raise BadSetting("--json: not with --follow, which never has all of it")
    with Store.open(store, to_read=True) as opened:
        runs = opened.named(named)
        if as_json:
            texts = [_read(opened, run.id)[0].decode(errors="replace") for run in runs]
            found = [run.fields | {"output": text} for run, text in zip(runs, texts, strict=True)]
            print_json(found if len(found) > 1 else found[0])
        elif len(runs) == 1:
            _print(opened, runs, follow, lambda _, text: _write(text), lambda _: None)
        else:
            from penstock.runs.launch.terminal import Prefixed

            names = [run.name for run in runs]
            same = len(set(names)) < len(names)
            shown = Prefixed([f"{run.name} {run.id}" for run in runs] if same else names)
            _print(opened, runs, follow, lambda run, text: shown.add(run, 1, text), shown.close)


def _read(store: Store, id: str, at: int = 0) -> tuple[bytes, int]:
    """Return what a run has printed from a byte on, and the byte where that ends."""
    with suppress(FileNotFoundError), (store.folder_of(id) / "output").open("rb") as file:
        return read_output(file, at)
    return b"", at


def _print(
    store: Store,
    runs: Sequence[RunRecord],
    follow: bool,
    write: Callable[[int, bytes], None],
    close: Callable[[int], None],
) -> None:
    """Read on in turn what runs print, until they have ended if they are followed."""
    unread = dict.fromkeys(range(len(runs)), 0)
    while unread:
        for place, at in list(unread.items()):
            run = store.run(runs[place].id)  # before the rest is read: what it prints last is read, too
            text, unread[place] = _read(store, run.id, at)
            if text:
                write(place, text)
            if not follow or run.status in ENDED:
                close(place)
                if not unread.pop(place):
                    typer.echo(f"Run {run.id} ({run.status}) has printed nothing.", err=True)
        if unread:
            time.sleep(_POLL_S)


def _write(text: bytes) -> None:
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
