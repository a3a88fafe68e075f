"""Masks secrets in what is stored of a run: its command, its parameters, its environment, why it ended."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

import msgspec

from penstock.runs.command_options import NUMBER
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


def masked_reason(text: str, command: Sequence[str]) -> str:
    """Mask what a script printed as it ended: what ``masked`` does, and the secrets of its command."""
    for word, shown in zip(command, masked_words(command), strict=True):
        before = shown.removesuffix(MASK)
        if before != shown and word.startswith(before) and (secret := word[len(before) :]):
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", MASK, text)
    return masked(text)


def masked_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Mask the values of secret names."""
    return {name: MASK if is_secret(name) else masked(value) for name, value in variables.items()}


def masked_plan(run: RunPlan) -> RunPlan:
    """Return a run without secrets in its command and parameters."""
    return msgspec.structs.replace(
        run, command=masked_words(run.command), parameters=masked_variables(run.parameters)
    )


def add_masked(store: Store, group: GroupPlan, to: str = "") -> list[RunRecord]:
    """Add a group to the store, where secrets in commands and parameters are masked; return its runs unmasked."""
    records = store.add(msgspec.structs.replace(group, runs=tuple(map(masked_plan, group.runs))), to)
    return [msgspec.structs.replace(record, plan=run) for record, run in zip(records, group.runs, strict=True)]
