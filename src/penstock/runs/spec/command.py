"""The runs of one command: what a grid fills in, their names, and the group that a command line asks for.

A grid has values for each ``{name}`` of a command: every combination of them, or some drawn at random.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from penstock.errors import BadSetting
from penstock.runs.command_options import options_of, script_of
from penstock.runs.record import GroupPlan, RunPlan
from penstock.runs.spec.checks import Gpus
from penstock.runs.spec.checks import command as executed

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACE = re.compile(r"\{(\{)?([A-Za-z_][A-Za-z0-9_]*)\}(?(1)\})")
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(:log)?")
_LIKE_RANGE = re.compile(rf"{_NUMBER}\.\.")
_MOST_RUNS = 10_000
_TRIES = 100
"""Draws for each combination that was asked for; the rarest of a thousand integers on a log scale needs 70."""


class Range(msgspec.Struct, frozen=True):
    """Numbers between two ends, drawn evenly or evenly on a log scale; integers if both ends are."""

    low: float
    high: float
    is_log: bool
    is_integer: bool

    def draw(self, draws: random.Random) -> str:
        """Return one number as text: an integer, or rounded to four digits."""
        low, high = (self.low - 0.5, self.high + 0.5) if self.is_integer else (self.low, self.high)
        drawn = math.exp(draws.uniform(math.log(low), math.log(high))) if self.is_log else draws.uniform(low, high)
        rounded = round(drawn) if self.is_integer else float(f"{drawn:.4g}")
        clipped = min(max(rounded, self.low), self.high)
        return str(int(clipped)) if self.is_integer else repr(clipped)


Values = tuple[str, ...] | Range
Grid = dict[str, Values]


def grid_from(options: Sequence[str]) -> Grid:
    """Read ``lr=0.1,0.03`` and ``lr=1e-4..1e-1:log``, as ``--grid`` takes them."""
    grid: Grid = {}
    for option in options:
        name, equals, text = option.partition("=")
        if not equals:
            raise BadSetting(f"--grid {option}: write NAME=VALUE,VALUE, such as lr=0.1,0.03")
        if name in grid:
            raise BadSetting(f"--grid {option}: {name} has values already; give all in one --grid")
        grid[name] = values_from(f"--grid {option}", name, text.split(",") if text else [])
    return grid


def values_from(what: str, name: str, texts: Sequence[str]) -> Values:
    """Read what one name of a grid can be; one text may be a range. ``what`` was written, and begins the error."""
    if not _NAME.fullmatch(name):
        raise BadSetting(f"{what}: {name!r} is no name: letters, digits and _, no digit first")
    if not texts or "" in texts:
        raise BadSetting(f"{what}: {name} has {'an empty value' if texts else 'no values'}")
    if twice := sorted({text for text in texts if texts.count(text) > 1}):
        raise BadSetting(f"{what}: {name} has {twice[0]} twice; to repeat runs, ask for repeats (-n)")
    if len(texts) > 1 or not _LIKE_RANGE.match(texts[0]):
        return tuple(texts)
    found = _RANGE.fullmatch(texts[0])
    if not found:
        raise BadSetting(f"{what}: {texts[0]} is no range; write LOW..HIGH or LOW..HIGH:log")
    is_integer = all(re.fullmatch(r"[-+]?\d+", end) for end in found.group(1, 2))
    values = Range(float(found[1]), float(found[2]), bool(found[3]), is_integer)
    if not -math.inf < values.low < values.high < math.inf or (values.is_log and values.low <= 0):
        raise BadSetting(f"{what}: {texts[0]} must rise{', from above 0' if values.is_log else ''}")
    return values


def combinations(
    what: str, command: Sequence[str], grid: Grid, take: int | None, seed: int
) -> list[dict[str, str]]:
    """Return the parameters of each run: every combination in order, or ``take`` that differ, drawn at random.

    The command must have each name of the grid as ``{name}``; if the grid is empty, braces mean nothing. One
    ``seed`` gives one result. ``what`` asks for them, and begins the error.
    """
    if take is not None and (not grid or take < 1):
        why = f"must be above 0, not {take}" if grid else "draws from a grid, and there is none"
        raise BadSetting(f"{what}: random {why}")
    if not grid:
        return [{}]
    places = {match[2] for word in command for match in _PLACE.finditer(word) if not match[1]}
    if unused := [name for name in grid if name not in places]:
        raise BadSetting(f"{what}: the command has no {{{unused[0]}}} that the values of {unused[0]} could fill")
    if unfilled := sorted(places - set(grid)):
        name = unfilled[0]
        raise BadSetting(
            f"{what}: {{{name}}} has no values; give it some in the grid, or write {{{{{name}}}}} if it is text"
        )
    there = math.prod(_count(values) for values in grid.values())
    if take is None:
        if ranges := [name for name, values in grid.items() if isinstance(values, Range)]:
            raise BadSetting(
                f"{what}: {ranges[0]} is a range: give random the number of draws, or list its values"
            )
        check_count(what, there)
        lists = [values for values in grid.values() if not isinstance(values, Range)]
        return [dict(zip(grid, texts, strict=True)) for texts in itertools.product(*lists)]
    if take > there:
        raise BadSetting(f"{what}: random {take} of {there:.0f} combinations; ask for {there:.0f} at most")
    check_count(what, take)
    return _drawn(what, grid, take, random.Random(seed))


def check_count(what: str, runs: float) -> None:
    """Refuse more runs than anybody means to start."""
    if runs > _MOST_RUNS:
        raise BadSetting(f"{what}: these would be {runs:,.0f} runs; {_MOST_RUNS:,} at most")


def _drawn(what: str, grid: Grid, take: int, draws: random.Random) -> list[dict[str, str]]:
    drawn: dict[tuple[str, ...], None] = {}
    for _ in range(_TRIES * (take + 10)):
        texts = (v.draw(draws) if isinstance(v, Range) else draws.choice(v) for v in grid.values())
        drawn[tuple(texts)] = None
        if len(drawn) == take:
            return [dict(zip(grid, texts, strict=True)) for texts in drawn]
    raise BadSetting(f"{what}: random {take} found only {len(drawn)} that differ; ask for fewer, or widen a range")


def _count(values: Values) -> float:
    if not isinstance(values, Range):
        return len(values)
    return values.high - values.low + 1 if values.is_integer else math.inf


def fill(word: str, parameters: Mapping[str, str]) -> str:
    """Put values in the places of one word; without values, return it as it is."""
    if not parameters:
        return word
    return _PLACE.sub(lambda match: match[0][1:-1] if match[1] else parameters[match[2]], word)


_LONGEST_VALUE = 16
_LONGEST = 48


def base_name(command: Sequence[str]) -> str:
    """Return what a run of this command is called when nothing varies: its script's name, or its program's."""
    return PurePath(script_of(command) or command[0]).stem or "run"


def varied(base: str, all_parameters: Sequence[Mapping[str, str]]) -> list[str]:
    """Name runs of one command by those parameters that differ between them: ``lr=0.1,width=8``."""
    differ = [name for name in all_parameters[0] if len({each[name] for each in all_parameters}) > 1]
    if not differ:
        return [base] * len(all_parameters)
    return [",".join(f"{name}={each[name][-_LONGEST_VALUE:]}" for name in differ) for each in all_parameters]


def runs_of(
    what: str,
    command: Sequence[str],
    directory: str,
    *,
    name: str = "",
    grid: Grid | None = None,
    take: int | None = None,
    seed: int = 0,
    repeats: int = 1,
    **common: Any,
) -> list[RunPlan]:
    """Plan the runs of one command: each combination of its grid, each ``repeats`` times.

    Their names need not be unique: ``named`` makes them so over a whole group. ``common`` has the other attributes
    of their ``RunPlan``.
    """
    if not command or not command[0]:
        raise BadSetting(f"{what}: the command is empty")
    if repeats < 1:
        raise BadSetting(f"{what}: repeats must be above 0, not {repeats}")
    sets = combinations(what, command, grid or {}, take, seed)
    check_count(what, len(sets) * repeats)
    names = varied(name or base_name(command), sets)
    places = {option: value[1:-1] for option, value in options_of(tuple(command)).items() if value[:1] == "{"}
    runs: list[RunPlan] = []
    for parameters, label in zip(sets, names, strict=True):
        try:
            words = executed([fill(word, parameters) for word in command], directory)
        except BadSetting as error:
            raise BadSetting(f"{what}: {error}") from None
        run = RunPlan(
            command=words,
            name=f"{name},{label}" if name and label != name else label,
            parameters=parameters,
            filled=tuple(
                option
                for option, value in options_of(words).items()
                if option in places and parameters.get(places[option]) == value
            ),
            directory=directory,
            **common,
        )
        runs += [run] * repeats
    return runs


def named(runs: Sequence[RunPlan]) -> tuple[RunPlan, ...]:
    """Give each run of a group a short, printable name that no other has: ``train#0``, ``train#1``."""
    words = ["".join(c if c.isprintable() else "_" for c in run.name) for run in runs]
    short = [word if len(word) <= _LONGEST else f"{word[: _LONGEST - 1]}…" for word in words]
    times, seen = Counter(short), Counter[str]()
    taken, result = {name for name in short if times[name] == 1}, list[RunPlan]()
    for run, name in zip(runs, short, strict=True):
        given = name
        while times[name] > 1 and (given == name or given in taken):
            given = f"{name}#{seen[name]}"
            seen[name] += 1
        taken.add(given)
        result.append(msgspec.structs.replace(run, name=given))
    return tuple(result)


def group_of(
    words: Sequence[str],  # a script or a command, and its arguments
    gpus: Gpus,  # GPUs that it can ask for
    *,
    repeat: int = 1,  # how often each combination is run
    name: str = "",  # name of the runs; that of the script or command, if empty
    group: str = "",  # name of the group; that of the runs, if empty
    mode: str = "",  # mode of the group; "alone" for one run and "plain" for several, if empty
    grid: Sequence[str] = (),  # options such as ``"lr=0.1,0.03"``
    take: int | None = None,  # how many of the grid's combinations are drawn; None for all
    seed: int = 0,  # random seed of that
    listeners: tuple[str, ...] | None = None,  # as ``GroupPlan`` has them
    devices: Sequence[str] = (),  # GPUs that each run sees, by number or UUID; empty for all
    profile: Sequence[str] = (),  # profilers, each with its options
    **common: Any,  # what else each run's ``RunPlan`` has
) -> GroupPlan:
    """Plan the group that a command line asks for."""
    if mode != "mps" and any(common.get(limit) is not None for limit in ("mps_threads", "mps_memory_bytes")):
        raise BadSetting("--mps-threads, --mps-memory: only with --mode mps")
    runs = named(
        runs_of(
            "the command line",
            words,
            os.getcwd(),
            name=name,
            grid=grid_from(grid),
            take=take,
            seed=seed,
            repeats=repeat,
            devices=gpus.devices("--devices", devices),
            profile=gpus.profilers("--profile", profile),
            **common,
        )
    )
    plan = GroupPlan(
        name=group or name or base_name(words),
        mode=mode or ("plain" if len(runs) > 1 else "alone"),
        runs=runs,
        listeners=listeners,
    )
    return gpus.admit("--mode", plan)
