"""``penstock select``: scores samples, shows and compares scores, measures what selecting saves."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.basics.terminal import console, say
from penstock.cli.command import AsJson, Command, Group, StoreFolder, argument, option
from penstock.cli.command import show as show_or_json
from penstock.errors import BadSetting
from penstock.select.meter import WATTS

if TYPE_CHECKING:
    from penstock.select.task import Task

app = typer.Typer(cls=Group, help="Find the samples that are worth training on.", no_args_is_help=True)

_Scores = Annotated[str, argument("SCORES", "Name of saved scores, or a .parquet file.")]
_Watts = Annotated[float, option("Power of a busy core, if there are no energy counters.", metavar="W", min=0)]


@app.command(cls=Command)
def score(
    task: Annotated[str, argument("FILE.py:FUNCTION", "Function that makes the Task; it may take seed=.")],
    method: Annotated[str, option("Method: diverse, el2n, less, rds or sketch.", metavar="METHOD")],
    out: Annotated[str, option("Name to save the scores under, or a .parquet file.", metavar="NAME")],
    seed: Annotated[int, option("Random seed.", min=0)] = 0,
    settings: Annotated[
        list[str] | None,
        option("--set", "Setting of the method, such as epochs=2; repeatable.", metavar="NAME=VALUE"),
    ] = None,
    replace: Annotated[bool, option("--replace", "Replace scores of this name.")] = False,
) -> None:
    """Score the samples of a task: how much each is worth training on."""
    from penstock.basics.packages import require
    from penstock.cli.select_table import scores_page
    from penstock.feed.launch.function import users_code
    from penstock.select.meter import metered
    from penstock.select.scores import path_of, room_for

    require("penstock select score", "torch,columns", "torch", "pyarrow")
    from penstock.select.scoring import method_of, scored
    from penstock.select.steps import steps_in

    given = dict(_setting(each) for each in settings or ())
    scorer = method_of(method, given)
    room_for(path := path_of(out))
    partial = path.with_suffix(".partial")
    with steps_in(partial) as steps, metered(whole=True) as meter:
        if path.exists() and not replace:
            raise BadSetting(f"{path} is there already: give another name, or --replace")
        made = _task(task, seed)
        try:
            with users_code(f"{method} on {task}"):
                found = scored(made, scorer, seed, None, meter, steps, anew=replace)
        except KeyboardInterrupt:
            if steps.holds_steps:
                say(f"finished steps are kept in {partial}: repeat the command to go on")
            raise
        found.save(out)
        steps.end(saved=True)
    console().print(scores_page(found), f"saved: {path}", soft_wrap=True)


@app.command(cls=Command)
def show(scores: _Scores, as_json: AsJson = False) -> None:
    """Show scores: their origin, their cost, and a histogram."""
    from penstock.cli.select_table import scores_page
    from penstock.select.scores import Scores

    read = Scores.read(scores)
    show_or_json(as_json, read.header, lambda: scores_page(read))


@app.command(cls=Command)
def compare(scores: Annotated[list[str], argument("SCORES...", "Names or .parquet files, two or more.")]) -> None:
    """Compare scores of one data set: do they rank alike, and how many of their best samples do they share?"""
    from penstock.cli.select_table import comparison_table
    from penstock.select.scores import Scores

    if len(scores) < 2:
        raise BadSetting("give two or more scores to compare")
    read = [Scores.read(each) for each in scores]
    for name, each in zip(scores[1:], read[1:], strict=True):
        differs = read[0].header.data.difference(each.header.data)
        if not differs and each.header.ids_digest != read[0].header.ids_digest:
            differs = f"{len(read[0]):,} scored samples, and {len(each):,}, or others"
        if differs:
            raise BadSetting(f"{scores[0]} and {name} are scores of other samples: {differs}")
    console().print(comparison_table(scores, read), soft_wrap=True)


@app.command(cls=Command)
def cost(
    scores: _Scores,
    full: Annotated[str, option("Name or id of the group of runs on all samples.", metavar="GROUP")],
    selected: Annotated[str, option("Name or id of the group of runs on the selection.", metavar="GROUP")],
    metric: Annotated[str, option("Metric that the runs logged; higher is better.", metavar="NAME")] = "accuracy",
    watts: _Watts = WATTS,
    store: StoreFolder = None,
) -> None:
    """Show after how many runs on a selection its scoring has paid, in time and energy, and the accuracy."""
    from penstock.cli.select_table import cost_page
    from penstock.runs.store import Store
    from penstock.select.savings import check_selected, cost_of, cost_of_full
    from penstock.select.scores import Scores

    header = Scores.read(scores).header
    with Store.open(store) as opened:
        check_selected(opened, selected, scores, header)
        page = cost_page(header, cost_of_full(opened, full), cost_of(opened, selected), metric, watts)
    console().print(page, soft_wrap=True)


@app.command(cls=Command)
def bench(
    spec: Annotated[Path, argument("SPEC", "YAML file with the methods to compare.")],
    out: Annotated[Path, option("Folder for scores, results, table and picture.", metavar="DIR")],
    again: Annotated[bool, option("--again", "Measure again if a script has changed.")] = False,
    store: StoreFolder = None,
) -> None:
    """Compare methods by accuracy and cost, selection included; finished runs are not repeated."""
    from penstock.basics.packages import require

    require("penstock select bench", "torch,columns,runs,demo", "torch", "pyarrow", "yaml", "matplotlib")
    from penstock.runs.store import Store
    from penstock.select.bench.compare import compare_methods
    from penstock.select.bench.spec import read_spec

    comparison = read_spec(spec)
    with Store.open(store) as opened:
        compare_methods(comparison, out, opened, console(), again=again)


def _task(where: str, seed: int) -> Task:
    from penstock.feed.launch.function import call, function_at
    from penstock.select.task import Task

    make: Callable[..., Any] = function_at(where)
    takes_seed = "seed" in inspect.signature(make).parameters
    task = call(partial(make, seed=seed) if takes_seed else make, where)
    if not isinstance(task, Task):
        raise BadSetting(f"{where} returned a {type(task).__name__}, and no penstock.select.Task")
    return task


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise BadSetting(f"--set {text}: write NAME=VALUE, such as epochs=2")
    return name, value
