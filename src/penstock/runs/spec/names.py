"""Names of runs: short, unique within their group, told apart by what varies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath

_LONGEST_VALUE = 16
_LONGEST = 48


def base_name(command: Sequence[str]) -> str:
    """Return what a run of this command is called when nothing varies: its script's name, or its program's."""
    script = next((word for word in command if word.endswith(".py")), command[0])
    return PurePath(script).stem or "run"


def varied(base: str, all_parameters: Sequence[Mapping[str, str]]) -> list[str]:
    """Name runs of one command by those parameters that differ between them: ``lr=0.1,width=8``."""
    differ = [name for name in all_parameters[0] if len({each[name] for each in all_parameters}) > 1]
    if not differ:
        return [base] * len(all_parameters)
    return [",".join(f"{name}={each[name][-_LONGEST_VALUE:]}" for name in differ) for each in all_parameters]


def unique(names: Sequence[str]) -> list[str]:
    """Shorten names, make them printable, and number those that come more than once: ``train#0``, ``train#1``."""
    words = ["".join(c if c.isprintable() else "_" for c in name) for name in names]
    short = [word if len(word) <= _LONGEST else f"{word[: _LONGEST - 1]}…" for word in words]
    times, seen = Counter(short), Counter[str]()
    taken, result = {name for name in short if times[name] == 1}, list[str]()
    for name in short:
        given = name
        while times[name] > 1 and (given == name or given in taken):
            given = f"{name}#{seen[name]}"
            seen[name] += 1
        taken.add(given)
        result.append(given)
    return result
