"""YAML files of runs: their keys, and what they plan."""

from __future__ import annotations

import difflib
import re
import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from penstock.autosharing.options import ShareOptions
from penstock.basics.sizes import size_from
from penstock.errors import BadSetting
from penstock.runs.record import GroupPlan, RunPlan
from penstock.runs.spec.checks import Gpus, check_listeners, seconds_from
from penstock.runs.spec.command import named, runs_of
from penstock.runs.spec.grid import values_from
from penstock.runs.spec.yaml_text import YamlText, read_yaml

Text = str | list[str]


class _Runs(msgspec.Struct, forbid_unknown_fields=True):
    """Runs of one command: a whole group, or an entry of a group's ``runs``."""

    command: Text = ""
    name: str = ""
    grid: dict[str, Text] = {}
    random: int | None = None
    seed: int = 0
    repeats: int = 1
    devices: list[str] = []
    directory: str = "."
    time_limit: str | None = None
    mps_threads: Annotated[float, msgspec.Meta(gt=0, le=100)] | None = None
    mps_memory: str = ""
    watch_dataloader: bool = False
    profile: list[str] = []
    share: bool | ShareOptions = False


class _Group(_Runs, forbid_unknown_fields=True):
    """Runs that start together."""

    runs: list[_Runs] = []
    mode: str = ""
    modes: list[str] = []
    listeners: list[str] | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """A whole file."""

    groups: list[_Group]


_KEYS = [field for kind in (_File, _Group, ShareOptions) for field in kind.__struct_fields__]


def plan_yaml(path: Path, text: str, gpus: Gpus) -> list[tuple[str, GroupPlan]]:
    """Plan the groups of a YAML spec, each with the place where it stands; paths count from its folder.

    Raises:
        BadSetting: a key, a type, a script or a value is wrong; the message has file, line and key.
        PackageMissing: PyYAML is not installed.
    """
    read = read_yaml(path, text)
    try:
        spec = msgspec.convert(read.tree, _File, strict=False)
    except msgspec.ValidationError as error:
        raise BadSetting(_explained(read, str(error))) from None
    if not spec.groups:
        raise BadSetting(f"{read.where('$.groups')}: groups is empty")
    planned: list[tuple[str, GroupPlan]] = []
    for i, group in enumerate(spec.groups):
        name = group.name or (path.stem if len(spec.groups) == 1 else f"{path.stem}-{i}")
        planned += _groups(read, f"$.groups[{i}]", group, name, gpus)
    return planned


def _groups(read: YamlText, at: str, group: _Group, name: str, gpus: Gpus) -> list[tuple[str, GroupPlan]]:
    """Plan a group once in each of its modes."""
    if group.mode and group.modes:
        raise BadSetting(f"{read.where_key(at, 'modes')}: leave out mode, or add it to modes")
    where = read.where_key(at, "modes" if group.modes else "mode")
    modes = group.modes or [group.mode or "plain"]
    if len(set(modes)) < len(modes):
        raise BadSetting(f"{where}: one of them stands there twice")
    if group.runs:
        if beside := [key for key in _Runs.__struct_fields__ if key != "name" and f"{at}.{key}" in read.lines]:
            raise BadSetting(
                f"{read.where_key(at, beside[0])}: this group has runs; put {beside[0]} into each of them"
            )
        runs = [
            run
            for i, each in enumerate(group.runs)
            for run in _runs(read, f"{at}.runs[{i}]", each, each.name, gpus)
        ]
    else:
        runs = _runs(read, at, group, "", gpus)
    if "mps" not in modes and any(run.mps_threads or run.mps_memory_bytes for run in runs):
        raise BadSetting(f"{where}: mps_threads and mps_memory are for mode mps, which is not there")
    listeners = None
    if group.listeners is not None:
        listeners = check_listeners(read.where_key(at, "listeners"), group.listeners)
    return [(where, GroupPlan(name=name, mode=mode, runs=named(runs), listeners=listeners)) for mode in modes]


def _runs(read: YamlText, at: str, runs: _Runs, name: str, gpus: Gpus) -> list[RunPlan]:
    where = partial(read.where_key, at)
    directory = (read.path.parent / runs.directory).absolute()
    if not directory.is_dir():
        raise BadSetting(f"{where('directory')}: there is no folder {directory}")
    try:
        words = shlex.split(runs.command) if isinstance(runs.command, str) else runs.command
    except ValueError as error:
        raise BadSetting(f"{where('command')}: {error}") from None
    grid = {
        key: values_from(where(f"grid.{key}"), key, [texts] if isinstance(texts, str) else texts)
        for key, texts in runs.grid.items()
    }
    limit_s = None if runs.time_limit is None else seconds_from(where("time_limit"), runs.time_limit)
    return runs_of(
        where("command"),
        words,
        str(directory),
        name=name,
        grid=grid,
        take=runs.random,
        seed=runs.seed,
        repeats=runs.repeats,
        devices=gpus.devices(where("devices"), runs.devices),
        time_limit_s=limit_s,
        mps_threads=runs.mps_threads,
        mps_memory_bytes=size_from(where("mps_memory"), runs.mps_memory) if runs.mps_memory else None,
        watch_dataloader=runs.watch_dataloader,
        profile=gpus.profilers(where("profile"), runs.profile),
        share=ShareOptions() if runs.share is True else runs.share or None,
    )


def _explained(read: YamlText, message: str) -> str:
    """Turn msgspec's words into file, line, key and what could stand there."""
    problem, _, at = message.partition(" - at `")
    at = at.rstrip("`") or "$"
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", problem, re.DOTALL):
        close = difflib.get_close_matches(unknown[1], _KEYS, 1)
        meant = f"; did you mean {close[0]}?" if close else ""
        return f"{read.where(f'{at}.{unknown[1]}')}: there is no key {unknown[1]}{meant}"
    at = at.partition("[...]")[0]  # which stands for any key of a grid
    key = at.removeprefix("$").rpartition(".")[2]
    return f"{read.where(at)}: {key + ': ' if key else ''}{problem[:1].lower()}{problem[1:]}"
