"""Masks keys and tokens in what is kept of a run."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

import msgspec

from penstock.runs.record import GroupPlan, RunPlan, RunRecord
from penstock.runs.store import Store

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
        MASK if before.startswith("-") and is_secret(before) else masked(word)
        for before, word in zip(("", *words), words, strict=False)
    )


def masked_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Mask the values of secret names."""
    return {name: MASK if is_secret(name) else masked(value) for name, value in variables.items()}


def add_masked(store: Store, group: GroupPlan) -> list[RunRecord]:
    """Add a group to the store, where secrets in commands and parameters are masked; return its runs unmasked."""
    masked_runs = msgspec.structs.replace(group, runs=tuple(map(_masked_run, group.runs)))
    return [
        msgspec.structs.replace(record, plan=run)
        for record, run in zip(store.add(masked_runs), group.runs, strict=True)
    ]


def _masked_run(run: RunPlan) -> RunPlan:
    return msgspec.structs.replace(
        run, command=masked_words(run.command), parameters=masked_variables(run.parameters)
    )
