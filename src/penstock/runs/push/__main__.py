"""Pushes groups until standard input ends, then what is left: ``python -m penstock.runs.push STORE GROUP...``."""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import suppress
from pathlib import Path

from penstock.basics.terminal import say
from penstock.errors import PenstockError
from penstock.runs.push.beside import later
from penstock.runs.record import ENDED
from penstock.runs.store import Store

_EVERY_S = 5.0
_PART = 20
"""It rests this many times as long as the last push took."""
_END_S = 10.0
_PAUSES_S = 0.5, 2.0


def _main(folder: str, *groups: str) -> int:
    from penstock.runs.push.to_mlflow import Push

    uri, rest_s = os.environ["MLFLOW_TRACKING_URI"], _EVERY_S
    with Store.open(Path(folder)) as store:
        push = Push(store, uri)
        while not select.select([sys.stdin], [], [], rest_s)[0]:
            began = time.monotonic()
            with suppress(PenstockError):  # the server may be back later
                push.groups(groups)
            rest_s = max(_EVERY_S, _PART * (time.monotonic() - began))
        # If who started the runs was killed, their keepers are ending them.
        until = time.monotonic() + _END_S
        while time.monotonic() < until and any(
            run.status not in ENDED for group in groups for run in store.runs(group)
        ):
            time.sleep(0.2)
        for pause_s in (*_PAUSES_S, None):
            try:
                push.groups(groups)
                return 0
            except PenstockError as error:
                if pause_s is None:
                    say(f"not all was pushed to {error}; {later(groups)}")
                    return 1
                time.sleep(pause_s)
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
