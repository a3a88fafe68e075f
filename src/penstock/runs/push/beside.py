"""The process that pushes runs that have ended beside ``penstock run``, until standard input ends.

It is ``python -m penstock.runs.push.beside STORE GROUP...``.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.basics.terminal import say
from penstock.errors import PenstockError
from penstock.linux.process import ignore_sent
from penstock.runs.record import ENDED
from penstock.runs.store import Store

_PATIENCE_S = 15.0
_EVERY_S = 5.0
_END_S = 10.0


@contextmanager
def pushing(folder: Path, groups: Sequence[str], uri: str, experiment: str) -> Generator[None]:
    """Push each run of groups to a server once it has ended; only at the end is that waited for."""
    named = {"MLFLOW_EXPERIMENT_NAME": experiment} if experiment else {}
    process = subprocess.Popen(
        # Of the working directory nothing is imported: a script of the user's may be called mlflow.py.
        [sys.executable, "-P", "-W", "ignore", "-m", __name__, str(folder), *groups],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "MLFLOW_TRACKING_URI": uri, **named},  # a URI with a password is not for `ps`
        start_new_session=True,
    )
    assert process.stdin
    try:
        yield
    finally:
        process.stdin.close()
        try:
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                say("pushing what the runs have left; Ctrl-C ends that")
                process.wait()
        except KeyboardInterrupt:
            process.kill()
            process.wait()
            say(f"not all was pushed; {later(groups)}")


def later(groups: Sequence[str]) -> str:
    """Return a sentence on how to push these groups later."""
    return f"the store has it all: penstock runs push --mlflow URI {' '.join(groups)}"


def _main(folder: str, *groups: str) -> int:
    from penstock.runs.push.to_mlflow import Push

    ignore_sent()  # they are for the runs
    with Store.open(Path(folder)) as store:
        push = Push(store, os.environ["MLFLOW_TRACKING_URI"])
        while not select.select([sys.stdin], [], [], _EVERY_S)[0]:
            with suppress(PenstockError):  # the server may be back later
                push.groups(groups)
        # If who started the runs was killed, their keepers are ending them.
        until = time.monotonic() + _END_S
        while time.monotonic() < until and any(
            run.status not in ENDED for group in groups for run in store.runs(group)
        ):
            time.sleep(0.2)
        try:
            push.groups(groups)
        except PenstockError as error:
            say(f"not all was pushed to {error}; {later(groups)}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
