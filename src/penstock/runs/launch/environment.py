"""What a run ran in, for its ``environment.json``.

A run is described while it runs, so that its start does not wait.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import GpuMissing
from penstock.gpus.nvml import devices
from penstock.linux.files import written_whole
from penstock.runs.command_options import script_of
from penstock.runs.launch.code import code_of
from penstock.runs.launch.launched import Launched
from penstock.runs.machine import describe
from penstock.runs.masking import masked, masked_variables, masked_words
from penstock.runs.store import Store

MOST_DIFF_BYTES = 1_000_000
_GIT_S = 5.0
_DRIVER = Path("/proc/driver/nvidia/version")

_SHOWN = re.compile(
    r"(CUDA|OMP|MKL|OPENBLAS|NCCL|GLOO|UCX|TORCH|PYTORCH|NVIDIA|PYTHON|PENSTOCK|SLURM|CONDA|JAX|XLA|TF|HF)_?\w*"
    r"|PATH|LD_LIBRARY_PATH|VIRTUAL_ENV|HOSTNAME|LANG|TZ|RANK|WORLD_SIZE|LOCAL_RANK|MASTER_(ADDR|PORT)"
)
"""The only variables that are stored."""


def describe_all(store: Store, runs: Sequence[Launched]) -> None:
    """Write each run's ``environment.json``."""
    shared = _machine()
    for known in (git, _code, packages):  # of runs that were started before: they may have changed
        known.cache_clear()
    for run in runs:
        with suppress(OSError):  # a full disk, or the run was removed: no reason to stop any
            path = store.folder_of(run.record.id) / "environment.json"
            with written_whole(path) as half:
                half.write_text(json.dumps(_described(run) | shared, indent=1))


@cache
def _machine() -> dict[str, Any]:
    gpus, driver = list[str](), None  # the GPU of ``gpu.N`` is the N-th
    with suppress(GpuMissing):
        gpus = [uuid for uuid, _ in devices(os.environ)]
    with suppress(OSError):
        driver = _DRIVER.read_text().splitlines()[0].removeprefix("NVRM version: ")
    return {"machine": msgspec.to_builtins(describe()), "driver": driver, "gpus": gpus}


def _described(run: Launched) -> dict[str, Any]:
    """Describe what one run runs in, without the machine."""
    plan = run.record.plan
    shown = {name: value for name, value in run.environment.items() if _SHOWN.fullmatch(name)}
    shown.pop("PENSTOCK_RUN_PARAMETERS", None)  # the run's parameters are stored, masked by their names
    return {
        "command": masked_words(plan.command),
        "directory": plan.directory,
        "git": git(plan.directory),
        "code": _code(script_of(plan.command), plan.directory),
        "packages": packages() if plan.command[0] == sys.executable else None,
        "variables": masked_variables(shown),
    }


@cache
def _code(script: str, directory: str) -> dict[str, dict[str, str]]:
    return code_of(script, directory) if script else {}


@cache
def packages() -> dict[str, str]:
    """Return the packages of this Python, with their versions."""
    found: dict[str, str] = {}
    for folder in reversed(sys.path):  # what comes first counts
        for path in Path(folder or ".").glob("*-*.*-info"):  # to read what lies in all of them takes long
            name, version, *_ = path.stem.split("-")
            found[name] = version
    return dict(sorted(found.items(), key=lambda each: each[0].lower()))


@cache
def git(directory: str) -> dict[str, Any] | None:
    """Return commit and uncommitted changes of the repository that a directory lies in; None without one."""
    commit = _git(directory, "rev-parse", "HEAD")
    if not commit:
        return None
    diff = _git(directory, "diff", "--no-ext-diff", "--no-color", "HEAD")
    whole = len(diff) <= MOST_DIFF_BYTES
    return {
        "commit": commit.decode().strip(),
        "diff": masked(diff[:MOST_DIFF_BYTES].decode(errors="replace")),
        "diff_is_whole": whole,
    }


def _git(directory: str, *words: str) -> bytes:
    """Return the first bytes that git prints; nothing if it fails, or takes too long."""
    try:
        process = subprocess.Popen(
            ["git", "-C", directory, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            start_new_session=True,  # a Ctrl-C is not for it
        )
    except OSError:
        return b""
    with process:
        assert process.stdout
        limit = threading.Timer(_GIT_S, process.kill)
        limit.start()
        output = process.stdout.read(MOST_DIFF_BYTES + 1)
        whole = len(output) <= MOST_DIFF_BYTES
        if not whole:
            process.kill()
        failed = process.wait() != 0
        limit.cancel()
    return b"" if whole and failed else output
