"""What a run ran in, for its ``environment.json``, and how secrets are masked there and in the store.

A run is described while it runs, so that its start does not wait.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import GpuMissing
from penstock.gpus.nvml import devices
from penstock.linux.files import written_whole
from penstock.runs.launch.launched import Launched
from penstock.runs.machine import describe
from penstock.runs.record import GroupPlan, RunPlan, RunRecord
from penstock.runs.store import Store
from penstock.runs.words import NUMBER

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
        "packages": packages() if plan.command[0] == sys.executable else None,
        "variables": masked_variables(shown),
    }


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


MASK = "***"

_NAME = (
    r"[\w.-]*(?:(?:api|access|secret|private|auth|account)[_-]?key|token|passw(?:or)?d|passphrase|credentials?"
    r"|authorization|secret[\w-]*|(?-i:[A-Z]_KEY))"
)
_SECRET_NAME = re.compile(rf"(?i)-*{_NAME}")
_ASSIGNED = re.compile(rf"""(?ix)(?<![\w-])(-*{_NAME}["']?\s*[=:]\s*["']?(?:Bearer\s+|Basic\s+)?)[^\s"',;&]+""")
_SHAPES = re.compile(
    r"\b(?:hf_\w{16,}|sk-[\w-]{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[a-z]-[\w-]{10,}"
    r"|A[KS]IA[A-Z0-9]{16}|AIza[\w-]{30,}|eyJ[\w-]{10,}\.[\w-]+\.[\w-]*)|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"
)
_SECRET_OPTIONS = ("--key", "-p")
"""Options that stand before a secret, whose names alone do not say so; a number after ``-p`` is none."""
_SHORTEST = 8


def is_secret(name: str) -> bool:
    """Return whether an argument or a variable of this name has a value that nobody else should see."""
    return _SECRET_NAME.fullmatch(name) is not None


def masked(text: str) -> str:
    """Mask values of secret names, what looks like a token, and values of this process's secret variables."""
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST and is_secret(name):
            text = text.replace(value, MASK)
    return _SHAPES.sub(MASK, _ASSIGNED.sub(lambda found: found[1] + MASK, text))


def masked_words(words: Sequence[str]) -> tuple[str, ...]:
    """Mask a command's secret arguments: ``--token=X``, and the word after ``--token``."""
    return tuple(
        MASK if before.startswith("-") and (is_secret(before) or _follows(before, word)) else _masked_word(word)
        for before, word in zip(("", *words), words, strict=False)
    )


def _follows(option: str, word: str) -> bool:
    return option in _SECRET_OPTIONS and not (option == "-p" and NUMBER.fullmatch(word))


def _masked_word(word: str) -> str:
    option, equals, _ = word.partition("=")
    hidden = option in _SECRET_OPTIONS or is_secret(option.lstrip("+"))
    return f"{option}={MASK}" if equals and hidden else masked(word)


def masked_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Mask the values of secret names."""
    return {name: MASK if is_secret(name) else masked(value) for name, value in variables.items()}


def masked_plan(run: RunPlan) -> RunPlan:
    """Return a run without secrets in its command and parameters."""
    return msgspec.structs.replace(
        run, command=masked_words(run.command), parameters=masked_variables(run.parameters)
    )


def add_masked(store: Store, group: GroupPlan, to: str = "") -> list[RunRecord]:
    """Add a group to the store, where secrets in commands and parameters are masked; return its runs unmasked.

    Args:
        store: The store.
        group: The group.
        to: As of ``Store.add``.
    """
    records = store.add(msgspec.structs.replace(group, runs=tuple(map(masked_plan, group.runs))), to)
    return [msgspec.structs.replace(record, plan=run) for record, run in zip(records, group.runs, strict=True)]
