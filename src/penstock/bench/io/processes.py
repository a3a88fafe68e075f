"""Runs a measured process: gives it input, waits with a limit, ends it with all that it started."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.linux.process import in_words


class MeasurementFailed(PenstockError):
    """Raised when a measured process crashed, hung, or reported an error; the message says which."""


class Answer(NamedTuple):
    """What a process printed, and the CPU time that it used in all."""

    text: str
    cpu_s: float


def answer(command: Sequence[str], *, limit_s: float, told: bytes = b"") -> Answer:
    """Run a command to its end.

    Args:
        limit_s: Time after which it is killed.
        told: Its standard input.

    Raises:
        MeasurementFailed: it was killed, or its status is not 0; its last words are in the message.
    """
    before = _children_cpu_s()
    # A new process group: another tool's child processes must not outlive this call.
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        text, errors = process.communicate(told, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise MeasurementFailed(f"gave no result within {limit_s:.0f} s, and was killed") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    if process.returncode:
        raise MeasurementFailed(_end(process.returncode, errors.decode(errors="replace")))
    return Answer(text.decode(errors="replace"), _children_cpu_s() - before)


def _end(status: int, errors: str) -> str:
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return f"{in_words(status)}: {lines[-1]}" if lines else in_words(status)


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
