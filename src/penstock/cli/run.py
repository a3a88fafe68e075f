"""``penstock run``: start training runs, and wait for them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.basics.terminal import redraws, say, told
from penstock.cli.command import Experiment, StoreFolder, argument, exit_code, folder_of_store, option, print_page

if TYPE_CHECKING:
    from penstock.cli.runs_table import Looks
    from penstock.runs.elsewhere.jobs import JobPlace
    from penstock.runs.record import GroupPlan, RunRecord
    from penstock.runs.store import Store

_ELSEWHERE = ("cpus", "gpus")
_BESIDE_SPEC = (
    *("words", "carbon_intensity", "mlflow", "experiment", "no_gpu", "store", "detached", "on"),
    *_ELSEWHERE,
)
"""Options that may be given beside a spec; the file has the others."""
_OF_SHARING = ("workers", "only", "iterable", "pace", "explain", "strict")
_sharing = partial(option, rich_help_panel="Sharing")
_elsewhere = partial(option, rich_help_panel="Other machines")


def run(
    context: typer.Context,
    words: Annotated[
        list[str],
        argument("COMMAND", "A script (.py), a command, or a file of runs (.yaml, .csv); then its own arguments."),
    ],
    repeat: Annotated[
        int, option("-n", "--repeat", "Number of runs; with --grid, of each combination.", min=1)
    ] = 1,
    grid: Annotated[
        list[str] | None,
        option("Values for {NAME} in the command: lr=0.1,0.03; repeatable.", metavar="NAME=VALUES"),
    ] = None,
    random: Annotated[
        int | None, option("Number of combinations drawn from the grid; all unless given.", metavar="N", min=1)
    ] = None,
    seed: Annotated[int, option("Random seed for --random.")] = 0,
    name: Annotated[str, option("Name of the run; the script's unless given.")] = "",
    group: Annotated[str, option("Name of the group of runs; the run's unless given.")] = "",
    mode: Annotated[
        str, option("How runs share GPUs: alone (in turn), plain (at once), mps, mig:PROFILE.", metavar="MODE")
    ] = "",
    devices: Annotated[str, option("GPUs that each run sees: 0,1; all unless given.", metavar="NUMBERS")] = "",
    no_gpu: Annotated[bool, option("--no-gpu", "Leave out what needs a GPU, and print what that is.")] = False,
    mps_threads: Annotated[
        float | None, option("With mps: GPU threads that each run may use.", metavar="PERCENT", min=1, max=100)
    ] = None,
    mps_memory: Annotated[str, option("With mps: GPU memory that each run may use: 10GiB.", metavar="SIZE")] = "",
    time_limit: Annotated[str, option("Time after which a run is ended: 90s, 10m, 1h30m.", metavar="TIME")] = "",
    listeners: Annotated[
        str | None, option("What is measured: proc,host or none; all unless given.", metavar="NAMES")
    ] = None,
    carbon_intensity: Annotated[
        float | None,
        option("Grams of CO2 per kWh, for estimates.", metavar="GRAMS", envvar="PENSTOCK_CARBON_INTENSITY", min=0),
    ] = None,
    mlflow: Annotated[
        str, option("MLflow server to push runs to as they end: http://host:5000.", metavar="URI")
    ] = "",
    experiment: Experiment = "",
    profile: Annotated[
        list[str] | None, option("Profiler: torch, nsys or ncu, and its options; repeatable.", metavar="NAME")
    ] = None,
    watch_dataloader: Annotated[
        bool,
        option("--watch-dataloader/--no-watch-dataloader", "Record how long scripts wait for their DataLoaders."),
    ] = True,
    watch_metrics: Annotated[
        bool,
        option(
            "--watch-metrics/--no-watch-metrics", "Keep what scripts log with MLflow, wandb, TensorBoard, radT."
        ),
    ] = True,
    share: Annotated[
        bool, _sharing("--share", "Load the training data once for all runs; scripts need no change.")
    ] = False,
    workers: Annotated[
        int | None,
        _sharing(
            "--workers", "Workers that load; as many as the script's loader has unless given.", metavar="N", min=0
        ),
    ] = None,
    only: Annotated[
        str,
        _sharing(
            "--only", "Share only these loaders: a data set's class, or a place (train.py:12).", metavar="PATTERN"
        ),
    ] = "",
    iterable: Annotated[bool, _sharing("--iterable", "Also share loaders of an IterableDataset.")] = False,
    pace: Annotated[
        str, _sharing("--pace", "together: keep all runs on one feed, even if a slow one holds others back.")
    ] = "",
    explain: Annotated[bool, _sharing("--explain", "Print whether each loader is shared, and why.")] = False,
    strict: Annotated[bool, _sharing("--strict", "End a run if something prevents sharing.")] = False,
    on: Annotated[str, _elsewhere("--on", "Run on the nodes of a cluster: ray or slurm.", metavar="CLUSTER")] = "",
    cpus: Annotated[
        int | None,
        _elsewhere("--cpus", "CPU cores of each job; one for each of its runs unless given.", metavar="N", min=1),
    ] = None,
    gpus: Annotated[
        int | None,
        _elsewhere(
            "--gpus", "GPUs of each job; those that its runs' spec asks for unless given.", metavar="N", min=0
        ),
    ] = None,
    store: StoreFolder = None,
    detached: Annotated[bool, option("--detach", "Print the runs' ids and return; the runs go on.")] = False,
) -> None:
    """Run a script or command, once or several times, and store its output, measurements and result."""
    from penstock.autosharing.options import ShareOptions
    from penstock.basics.sizes import seconds_from, size_from
    from penstock.errors import BadSetting
    from penstock.feed.settings import checked
    from penstock.runs.spec.checks import SPECS, Gpus, listeners_from
    from penstock.runs.spec.open import Spec

    if carbon_intensity is not None:
        os.environ["PENSTOCK_CARBON_INTENSITY"] = str(carbon_intensity)  # for the sampling process
    if (alone := _given(context, _OF_SHARING)) and not share:
        raise BadSetting(f"{' '.join(alone)}: only with --share")
    checked(pace=pace or None)
    place = _place(context, on, cpus, gpus)
    sharing = ShareOptions(
        name=name, workers=workers, only=only, iterable=iterable, pace=pace, explain=explain, strict=strict
    )
    seen = Gpus(without=no_gpu, elsewhere=place is not None)
    pushed = _pushed(mlflow, experiment)
    if words[0].endswith(SPECS):
        others = {each.name for each in context.command.params} - {*_BESIDE_SPEC}
        if beside := [*_given(context, others), *words[1:]]:
            raise BadSetting(f"{' '.join(beside)} beside {words[0]}: write it into that file")
        with Spec(Path(words[0]), seen, in_turn=True, stored=partial(_stored, store)) as spec:
            for sentence in spec.left_out:
                say(sentence)
            _start(spec.groups, store, {"room": spec.room}, place, detached=detached, pushed=pushed)
    else:
        from penstock.runs.spec.command import group_of

        planned = group_of(
            words,
            seen,
            repeat=repeat,
            grid=grid or (),
            take=random,
            seed=seed,
            name=name,
            group=group,
            mode=mode,
            listeners=None if listeners is None else listeners_from("--listeners", listeners),
            devices=devices.split(",") if devices else (),
            profile=tuple(profile or ()),
            time_limit_s=seconds_from("--time-limit", time_limit) if time_limit else None,
            mps_threads=mps_threads,
            mps_memory_bytes=size_from("--mps-memory", mps_memory) if mps_memory else None,
            watch_dataloader=watch_dataloader,
            watch_metrics=watch_metrics,
            share=sharing if share else None,
        )
        for sentence in seen.left_out:
            say(sentence)
        _start([planned], store, {}, place, detached=detached, pushed=pushed)


def _stored(folder: Path | None, name: str) -> list[RunRecord]:
    """List the runs of groups of a name; none where there is no store yet."""
    from penstock.errors import StoreUnusable
    from penstock.runs.store import Store

    try:
        with Store.open(folder, to_read=True) as store:
            return store.runs(name)
    except StoreUnusable:
        return []


def _place(context: typer.Context, on: str, cpus: int | None, gpus: int | None) -> JobPlace | None:
    """Return where runs go if not to this machine."""
    from penstock.errors import BadSetting

    if not on:
        if alone := _given(context, _ELSEWHERE):
            raise BadSetting(f"{' '.join(alone)}: only with --on")
        return None
    from penstock.runs.elsewhere.jobs import JobPlace

    if on not in ("ray", "slurm"):
        raise BadSetting(f"--on {on}: there are ray and slurm")
    return JobPlace(on, cpus, gpus)


def _given(context: typer.Context, names: Collection[str | None]) -> list[str]:
    """List which of these options the command line has, as it spells them."""
    options = [each for each in context.command.params if each.name and each.name in names]
    sources = [(option, context.get_parameter_source(str(option.name))) for option in options]
    return [option.opts[-1] for option, source in sources if source and source.name == "COMMANDLINE"]


def _pushed(uri: str, experiment: str) -> Callable[[Path, list[str]], AbstractContextManager[None]]:
    """Return what pushes runs of groups of a store as they end; without a server, what does nothing."""
    if not uri:
        return lambda folder, groups: nullcontext()
    from penstock.basics.packages import require
    from penstock.runs.push import pushing

    require("--mlflow", "mlflow", "mlflow")
    return lambda folder, groups: pushing(folder, groups, uri, experiment)


def _start(
    groups: list[GroupPlan],
    folder: Path | None,
    settings: dict[str, Any],
    place: JobPlace | None,
    *,
    detached: bool,
    pushed: Callable[[Path, list[str]], AbstractContextManager[None]],
) -> None:
    """Run groups with settings of ``GroupsInTurn``, and exit as they did; or leave them to another process."""
    from penstock.runs.launch.groups import GroupsInTurn, detach
    from penstock.runs.masking import add_masked
    from penstock.runs.store import Store

    if not groups:
        typer.echo("Nothing is left to run: all runs of this file have ended.")
        return
    settings |= {"listeners": [group.listeners for group in groups], "place": place}
    if place:
        place.check(groups)
    with Store.open(folder_of_store(folder)) as opened:
        records = [add_masked(opened, group) for group in groups]
        ids = [group[0].group_id for group in records]
        if not detached:
            below = _lines_below(opened, [record.id for group in records for record in group])
            with pushed(opened.folder, ids):
                ended = GroupsInTurn(opened, records, below=below, **settings).run()
            _report_without_loaders(opened, ended, here=place is None)
            _show_ends(opened, ended)
            sys.exit(exit_code(ended))

    def run() -> None:
        with Store.open(opened.folder) as store:
            for id in ids:
                store.own(id)
            with pushed(store.folder, ids):
                GroupsInTurn(store, records, orphans="keep", **settings).run()

    detach(run)
    with told("which runs go on"):
        typer.echo("\n".join(record.id for group in records for record in group))


def _report_without_loaders(store: Store, ended: list[RunRecord], *, here: bool) -> None:
    """Name the runs that were to share, and have read no loader."""
    for record in ended:
        if record.plan.share and record.status == "finished" and "feed.batches" not in store.names(record.id):
            why = "it has iterated no DataLoader"
            if here and not (store.folder_of(record.id) / "hooked").exists():
                why = f"no Python of it loaded our hook (python -I, -E, -S, or another than {sys.executable})"
            say(f"{record.name} shared nothing: {why}")


def _lines_below(store: Store, ids: list[str]) -> Callable[[], list[str]] | None:
    """Return what shows several runs in a few lines of a terminal; None without such a terminal."""
    if len(ids) == 1 or not redraws():
        return None

    @cache
    def looks() -> Looks:  # imported once the runs have begun
        from penstock.cli.runs_table import Looks

        return Looks(store)

    return lambda: looks().lines(ids)


def _show_ends(store: Store, ended: list[RunRecord]) -> None:
    """Tell how runs ended, what they waited for, what to change first, and where more is told."""
    from penstock.cli.runs_table import ended_table, how_it_went

    if len(ended) == 1:
        say(how_it_went(store, ended[0]))
        return
    with told("how they ended"):
        print_page(ended_table(store, ended))
    groups = dict.fromkeys(record.group_id for record in ended)
    say(f"more, and what to change first: penstock runs compare {' '.join(groups)}")
