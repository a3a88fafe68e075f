"""What a feeder's process takes over of the run that starts it, which it outlives, and what it does without."""

from __future__ import annotations

import os
from collections.abc import Mapping

from penstock.basics.terminal import say_once
from penstock.inject import MODE, without_injection

_LIMITS = ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
_DAEMON = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")


def feeders_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a feeder's environment: without a training's limits under MPS, and without the daemon of a run.

    A daemon that ``penstock run --mode mps`` has started ends with its runs; one that was started apart stays, and
    a feeder that was started with its ``CUDA_MPS_PIPE_DIRECTORY`` is its client.
    """
    without = _LIMITS + (_DAEMON if environment.get(MODE) == "mps" else ())
    return {name: value for name, value in without_injection(environment).items() if name not in without}


def why_on_host() -> str:
    """Return why a feed that is started here has its ring on the host, though it asks for a GPU's; else ""."""
    mode = os.environ.get(MODE)
    if mode == "mig":
        return "each run of --mode mig has an instance of its own, which no other can map"
    return "the MPS daemon of --mode mps ends with its runs, and a feed does not" if mode else ""


def say_where(name: str, memory: str) -> None:
    """Say where the ring of a feed lies that is started here, if that is not where it is asked for."""
    if memory != "host" and (why := why_on_host()):
        say_once(f"feed {name!r} has its ring on the host, not on {memory}: {why}")
