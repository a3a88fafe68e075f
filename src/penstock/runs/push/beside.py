"""The process that pushes runs while and after they run: ``penstock run`` starts it, and waits for its end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.basics.packages import require
from penstock.basics.terminal import say

_PATIENCE_S = 15.0


def check_mlflow() -> None:
    """Check that MLflow's client is there.

    Raises:
        PackageMissing: it is not.
    """
    require("--mlflow", "mlflow", "mlflow")


@contextmanager
def pushing(folder: Path, groups: Sequence[str], uri: str, experiment: str) -> Generator[None]:
    """Push groups to a server, while their runs go on and once at the end; nothing is waited for but that end."""
    named = {"MLFLOW_EXPERIMENT_NAME": experiment} if experiment else {}
    process = subprocess.Popen(
        # Of the working directory nothing is imported: a script of the user's may be called mlflow.py.
        [sys.executable, "-P", "-W", "ignore", "-m", "penstock.runs.push", str(folder), *groups],
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
    """Say how runs of these groups are pushed later."""
    return f"the store has it all: penstock runs push --mlflow URI {' '.join(groups)}"
