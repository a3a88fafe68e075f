"""YAML files of runs: their keys, and what they plan."""

from __future__ import annotations

import difflib
import re
import shlex
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec

from penstock.autosharing.options import ShareOptions
from penstock.basics.packages import require
from penstock.basics.sizes import seconds_from, size_from
from penstock.errors import BadSetting
from penstock.runs.record import GroupPlan, RunPlan
from penstock.runs.spec.checks import Gpus, check_listeners
from penstock.runs.spec.command import named, runs_of, values_from
from penstock.runs.spec.needs import MachineTable, SpecMachine, check_after

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
    watch_dataloader: bool = True
    watch_metrics: bool = True
    profile: list[str] = []
    share: bool | ShareOptions = False
    after: Text = []
    gpus: Annotated[int, msgspec.Meta(ge=0)] | None = None
    memory: str = "auto"
    priority: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1.0
    deadline: str | None = None
    preempt: bool = False
    feed: str = "auto"
    epochs: Annotated[int, msgspec.Meta(ge=1)] | None = None


class _SpecGroup(_Runs, forbid_unknown_fields=True):
    """Runs that start together."""

    runs: list[_Runs] = []
    mode: str = ""
    modes: list[str] = []
    listeners: list[str] | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """A whole file."""

    groups: list[_SpecGroup]
    machine: MachineTable = MachineTable()


_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "keys with values",
    "null": "nothing",
}
_BOUNDS = {"<=": "of at most", ">=": "of at least", "<": "below", ">": "above"}
_OF_RADT = {"experiment", "workload", "collocation", "status", "file", "params", "dependencies"}
_KEYS = [field for kind in (_File, _SpecGroup, ShareOptions, MachineTable) for field in kind.__struct_fields__]


def plan_yaml(
    path: Path, text: str, gpus: Gpus, *, in_turn: bool = False
) -> tuple[list[tuple[str, GroupPlan]], SpecMachine]:
    """Plan the groups of a YAML spec, each with where it stands, as errors begin; paths count from its folder.

    With ``in_turn``, groups run one after the other whatever it says, and no run may come after a later group.
    """
    tree = read_yaml(path, text)
    try:
        spec = msgspec.convert(tree, _File, strict=False)
    except msgspec.ValidationError as error:
        raise BadSetting(f"{path}: {_explained(str(error))}") from None
    if not spec.groups:
        raise BadSetting(f"{path}: groups is empty")
    machine = SpecMachine(path, spec.machine, gpus, is_obeyed=not in_turn)
    planned: list[tuple[str, GroupPlan, list[dict[str, str]]]] = []
    for i, group in enumerate(spec.groups):
        name = group.name or (path.stem if len(spec.groups) == 1 else f"{path.stem}-{i}")
        planned += _groups(f"{path}: groups[{i}]", path.parent, group, tree["groups"][i], name, machine)
    by = "penstock run" if in_turn else "machine.groups" if machine.plan.in_turn else ""
    check_after([group for _, group, _ in planned], [names for *_, after in planned for names in after], by)
    return [(where, group) for where, group, _ in planned], machine


def _groups(
    at: str, folder: Path, group: _SpecGroup, written: dict[str, Any], name: str, machine: SpecMachine
) -> list[tuple[str, GroupPlan, list[dict[str, str]]]]:
    """Plan a group once in each of its modes; with it, where the names stand that each of its runs comes after."""
    if group.mode and group.modes:
        raise BadSetting(f"{at}.modes: leave out mode, or add it to modes")
    where = f"{at}.modes" if group.modes else f"{at}.mode"
    modes = group.modes or [group.mode or "plain"]
    if len(set(modes)) < len(modes):
        raise BadSetting(f"{where}: one of them stands there twice")
    entries: list[tuple[str, _Runs, str]] = [(at, group, "")]
    common = _after(at, group)
    if group.runs:
        if beside := [key for key in _Runs.__struct_fields__ if key in written and key not in ("name", "after")]:
            raise BadSetting(f"{at}.{beside[0]}: this group has runs; put {beside[0]} into each of them")
        entries = [(f"{at}.runs[{i}]", each, each.name) for i, each in enumerate(group.runs)]
    runs: list[RunPlan] = []
    after: list[dict[str, str]] = []
    for place, each, run_name in entries:
        names = common | _after(place, each)
        planned = _runs(place, folder, each, run_name, machine, tuple(names))
        runs += planned
        after += [names] * len(planned)
    if machine.simulates and any(run.devices for run in runs) and not {*modes} <= {"alone", "plain"}:
        raise BadSetting(f"{where}: GPUs that are simulated have no MPS and no MIG; leave out their devices")
    if "mps" not in modes and any(run.mps_threads or run.mps_memory_bytes for run in runs):
        raise BadSetting(f"{where}: mps_threads and mps_memory are for mode mps, which is not there")
    listeners = None
    if group.listeners is not None:
        listeners = check_listeners(f"{at}.listeners", group.listeners)
    plan = GroupPlan(name=name, runs=named(runs), listeners=listeners)
    return [(where, msgspec.structs.replace(plan, mode=mode), after) for mode in modes]


def _after(at: str, runs: _Runs) -> dict[str, str]:
    """Return the names in ``after``, and where each stands."""
    names = [runs.after] if isinstance(runs.after, str) else runs.after
    return dict.fromkeys(names, f"{at}.after")


def _runs(
    at: str, folder: Path, runs: _Runs, name: str, machine: SpecMachine, after: tuple[str, ...]
) -> list[RunPlan]:
    where = partial("{}.{}".format, at)
    directory = (folder / runs.directory).absolute()
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
    planned = runs_of(
        where("command"),
        words,
        str(directory),
        name=name,
        grid=grid,
        take=runs.random,
        seed=runs.seed,
        repeats=runs.repeats,
        devices=machine.devices(where("devices"), runs.devices),
        time_limit_s=None if runs.time_limit is None else seconds_from(where("time_limit"), runs.time_limit),
        mps_threads=runs.mps_threads,
        mps_memory_bytes=size_from(where("mps_memory"), runs.mps_memory) if runs.mps_memory else None,
        watch_dataloader=runs.watch_dataloader,
        watch_metrics=runs.watch_metrics,
        profile=machine.gpus.profilers(where("profile"), runs.profile),
        share=ShareOptions() if runs.share is True else runs.share or None,
        after=after,
        gpus=runs.gpus if machine.plan.simulated else machine.gpus.count(runs.gpus),
        memory_bytes=size_from(where("memory"), runs.memory) if runs.memory != "auto" else None,
        priority=runs.priority,
        deadline_s=None if runs.deadline is None else seconds_from(where("deadline"), runs.deadline),
        preempt=runs.preempt,
        feed=_feed(where("feed"), folder, runs.feed),
        epochs=runs.epochs,
    )
    machine.check(where, planned[0])
    return planned


def _feed(where: str, folder: Path, text: str) -> str:
    if text in ("auto", "none"):
        return text
    file, _, function = text.rpartition(":")
    if not file or not function.isidentifier():
        raise BadSetting(f"{where}={text!r}: auto, none, or FILE.py:FUNCTION, such as train.py:make_loader")
    if not (path := (folder / file).absolute()).is_file():
        raise BadSetting(f"{where}={text!r}: there is no file {path}")
    return f"{path}:{function}"


def _explained(message: str) -> str:
    """Turn msgspec's words into the place of a key, and what could stand there."""
    problem, _, at = message.partition(" - at `$")
    at = at.rstrip("`").partition("[...]")[0].removeprefix(".")  # [...] stands for any key of a grid
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", problem, re.DOTALL):
        return (f"{at}: " if at else "") + _of_unknown(unknown[1], top=not at)
    return (f"{at}: " if at else "") + _in_words(problem)


def _of_unknown(key: str, *, top: bool) -> str:
    if top and key.lower() in _OF_RADT:
        return f"{key} is a key of radT, whose YAML is not read: give its CSV file, or write groups"
    if key in _KEYS:
        return f"there is no key {key} here" + (f"; write groups: [{{{key}: …}}]" if top else "")
    close = difflib.get_close_matches(key, _KEYS, 1)
    return f"there is no key {key}" + (f"; did you mean {close[0]}?" if close else "")


def _in_words(problem: str) -> str:
    """Turn what msgspec says of a value's type or size into words that know no programming language."""
    if types := re.fullmatch(r"Expected `(.*)`, got `(.*)`", problem):
        wanted, got = (
            " or ".join(_TYPES.get(each, each) for each in text.removesuffix(" | null").split(" | "))
            for text in types.groups()
        )
        return f"it must be {wanted}, not {got}"
    if bound := re.fullmatch(r"Expected `(.*)` (<=|>=|<|>) (.*)", problem):
        kind, sign, value = bound.groups()
        return f"it must be {_TYPES.get(kind, kind)} {_BOUNDS[sign]} {Decimal(value).normalize():,f}"
    return problem[:1].lower() + problem[1:]


def read_yaml(path: Path, text: str) -> Any:
    """Read one document: dicts, lists, text and None."""
    require(f"{path.name}: YAML", "runs", "yaml")
    import yaml as untyped

    yaml: Any = untyped
    try:
        for event in yaml.parse(text, yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise BadSetting(f"{path}: *{event.anchor}: write out what it stands for")
        return _plain(f"{path}: ", yaml.compose(text, yaml.SafeLoader))
    except RecursionError:
        raise BadSetting(f"{path}: it is too deep for what it describes") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise BadSetting(f"{path}:{mark.line + 1 if mark else 1}: no YAML: {problem}") from None


def _plain(where: str, node: Any) -> Any:
    import yaml

    if node is None or isinstance(node, yaml.ScalarNode):
        return None if node is None or node.tag == "tag:yaml.org,2002:null" else str(node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(f"{where}[{i}]", part) for i, part in enumerate(node.value)]
    tree: dict[str, Any] = {}
    for key, value in node.value:
        at = where if where.endswith(" ") else f"{where}."
        if not isinstance(key, yaml.ScalarNode):
            raise BadSetting(f"{where.removesuffix(': ')}: a key must be a word")
        if key.value in tree:
            raise BadSetting(f"{at}{key.value}: it stands there twice")
        tree[key.value] = _plain(f"{at}{key.value}", value)
    return tree
