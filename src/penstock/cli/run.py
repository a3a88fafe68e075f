"""``penstock run``: start training runs, and wait for them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from penstock.autosharing.hook import ShareOptions
    from penstock.cli.runs_live import Looks
    from penstock.runs.record import GroupPlan, RunRecord
    from penstock.runs.spec.checks import Gpus
    from penstock.runs.spec.open import Spec
    from penstock.runs.store import Store

_SHARED = "Sharing"


def run(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND",
            help="A script (*.py), a command, or a spec (*.yaml, *.csv); what comes after is its own.",
        ),
    ],
    repeat: Annotated[int, typer.Option("-n", "--repeat", min=1, help="Number of runs, of each combination.")] = 1,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUES", help="Values for {NAME} in the command: lr=0.1,0.03; more than once."),
    ] = None,
    random: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Combinations drawn from the grid; all unless given.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the draws.")] = 0,
    name: Annotated[str, typer.Option(help="Name of the run, instead of the script's.")] = "",
    group: Annotated[str, typer.Option(help="Name of the group, instead of the run's.")] = "",
    mode: Annotated[
        str, typer.Option(metavar="MODE", help="alone: one after the other; plain: all at once; mps; mig:PROFILE.")
    ] = "",
    devices: Annotated[
        str, typer.Option(metavar="NUMBERS", help="GPUs that each run sees: 0,1; all unless given.")
    ] = "",
    mig_changes: Annotated[
        bool, typer.Option("--allow-mig-changes", help="Make MIG instances, as root, and take them back.")
    ] = False,
    no_gpu: Annotated[bool, typer.Option("--no-gpu", help="Leave out what needs a GPU, and say what.")] = False,
    mps_threads: Annotated[
        float | None,
        typer.Option(metavar="PERCENT", min=1, max=100, help="GPU threads that each run may use under MPS."),
    ] = None,
    mps_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="GPU memory that each run may use under MPS: 10GiB.")
    ] = "",
    time_limit: Annotated[
        str, typer.Option(metavar="TIME", help="Time after which a run is ended: 90s, 10m, 1h30m.")
    ] = "",
    listeners: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="What is sampled: proc,host; all unless given, or none."),
    ] = None,
    carbon_intensity: Annotated[
        float | None,
        typer.Option(
            metavar="GRAMS",
            envvar="PENSTOCK_CARBON_INTENSITY",
            min=0,
            help="Grams of CO2 per kWh, for estimates; none unless given.",
        ),
    ] = None,
    mlflow: Annotated[
        str, typer.Option(metavar="URI", help="An MLflow server that the runs are pushed to: http://host:5000.")
    ] = "",
    experiment: Annotated[
        str,
        typer.Option(metavar="NAME", help="Experiment there; $MLFLOW_EXPERIMENT_NAME, or the group's name."),
    ] = "",
    profile: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="torch, nsys or ncu, and its options; more than once."),
    ] = None,
    watch_dataloader: Annotated[
        bool, typer.Option("--watch-dataloader", help="Keep the wait for plain DataLoaders, too.")
    ] = False,
    share: Annotated[
        bool,
        typer.Option(
            "--share",
            help="Have the training loaders of all runs read one feed; scripts need no change.",
            rich_help_panel=_SHARED,
        ),
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Workers of a feed; as many as the script's loader has unless given.",
            rich_help_panel=_SHARED,
        ),
    ] = None,
    only: Annotated[
        str,
        typer.Option(
            metavar="PATTERN",
            help="Data sets' class, or places (train.py:12), to be shared; all unless given.",
            rich_help_panel=_SHARED,
        ),
    ] = "",
    iterable: Annotated[
        bool,
        typer.Option("--iterable", help="Share loaders over an IterableDataset, too.", rich_help_panel=_SHARED),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Tell what each loader is taken for, and why.", rich_help_panel=_SHARED),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="End a run at what hinders sharing.", rich_help_panel=_SHARED)
    ] = False,
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the store, instead of $PENSTOCK_STORE.")
    ] = None,
    detached: Annotated[
        bool, typer.Option("--detach", help="Print the runs' ids and return; they go on by themselves.")
    ] = False,
) -> None:
    """Run a script or a command, and keep what it was, what it printed and how it ended."""
    from penstock.basics.sizes import size_from
    from penstock.runs.spec.checks import SPECS, Gpus, listeners_from, seconds_from

    if carbon_intensity is not None:
        os.environ["PENSTOCK_CARBON_INTENSITY"] = str(carbon_intensity)  # for the sampling process
    options: dict[str, Any] = {
        "repeat": repeat,
        "grid": tuple(grid or ()),
        "take": random,
        "seed": seed,
        "name": name,
        "group": group,
        "mode": mode,
        "time_limit_s": seconds_from("--time-limit", time_limit) if time_limit else None,
        "listeners": None if listeners is None else listeners_from("--listeners", listeners),
        "devices": tuple(devices.split(",")) if devices else (),
        "mps_threads": mps_threads,
        "mps_memory_bytes": size_from("--mps-memory", mps_memory) if mps_memory else None,
        "watch_dataloader": watch_dataloader,
        "profile": tuple(profile or ()),
        "share": _share_options(
            share, name=name, workers=workers, only=only, iterable=iterable, explain=explain, strict=strict
        ),
    }
    gpus = Gpus(without=no_gpu, mig_changes=mig_changes)
    pushed = _pushed(mlflow, experiment)
    if words[0].endswith(SPECS):
        _refuse_beside_spec(words, options)
        with _spec(words[0], gpus) as spec:
            _start(spec.groups, store, tell=spec.tell, detached=detached, pushed=pushed)
    else:
        from penstock.runs.spec.command import group_of

        planned = group_of(words, gpus, **options)
        _say_left_out(gpus.left_out)
        _start([planned], store, tell=None, detached=detached, pushed=pushed)


def _share_options(share: bool, **given: Any) -> ShareOptions | None:
    """Return what ``--share`` and its options ask for.

    Raises:
        BadSetting: there are options, and no ``--share``.
    """
    from penstock.autosharing.hook import ShareOptions
    from penstock.errors import BadSetting

    alone = [f"--{name}" for name, value in given.items() if name != "name" and value not in (None, "", False)]
    if alone and not share:
        raise BadSetting(f"{' '.join(alone)}: only with --share")
    return ShareOptions(**given) if share else None


def _refuse_beside_spec(words: list[str], options: dict[str, Any]) -> None:
    """Refuse what a spec says itself.

    Raises:
        BadSetting: something else was given.
    """
    from penstock.errors import BadSetting

    nothing: dict[str, Any] = {"repeat": 1, "seed": 0, "name": "", "group": "", "mode": ""}
    nothing |= {"grid": (), "devices": (), "watch_dataloader": False, "profile": ()}
    flags = {"take": "random", "time_limit_s": "time-limit", "watch_dataloader": "watch-dataloader"}
    flags |= {"mps_threads": "mps-threads", "mps_memory_bytes": "mps-memory"}
    given = [f"--{flags.get(name, name)}" for name, value in options.items() if value != nothing.get(name)]
    if words[1:] or given:
        raise BadSetting(
            f"{' '.join([*given, *words[1:]])} beside {words[0]}: a spec says all of its runs; write it there"
        )


def _spec(path: str, gpus: Gpus) -> Spec:
    """Open a spec, and say what it asks for that is not done."""
    from penstock.runs.spec.open import Spec

    spec = Spec(Path(path), gpus)
    _say_left_out(spec.left_out)
    return spec


def _say_left_out(sentences: list[str]) -> None:
    for sentence in sentences:
        typer.echo(f"penstock: {sentence}", err=True)


def _pushed(uri: str, experiment: str) -> Callable[[Path, list[str]], AbstractContextManager[None]]:
    """Return what pushes groups of a store while they run; nothing does without a server."""
    if not uri:
        return lambda folder, groups: nullcontext()
    from penstock.basics.packages import require
    from penstock.runs.push.beside import pushing

    require("--mlflow", "mlflow", "mlflow")
    return lambda folder, groups: pushing(folder, groups, uri, experiment)


def _start(
    groups: list[GroupPlan],
    folder: Path | None,
    *,
    tell: Callable[[int, RunRecord], None] | None,
    detached: bool,
    pushed: Callable[[Path, list[str]], AbstractContextManager[None]],
) -> None:
    """Run groups, and exit as they did; or leave them to a process of their own."""
    from penstock.runs.launch.environment import add_masked
    from penstock.runs.launch.groups import GroupsInTurn, detach
    from penstock.runs.store import Store

    if not groups:
        typer.echo("Nothing is left to run: all runs of this file have ended.")
        return
    listeners = [group.listeners for group in groups]
    with Store.open(folder) as opened:
        records = [add_masked(opened, group) for group in groups]
        ids = [group[0].group_id for group in records]
        if not detached:
            below = _lines_below(opened, [record.id for group in records for record in group])
            with pushed(opened.folder, ids):
                ended = GroupsInTurn(opened, records, listeners=listeners, tell=tell, below=below).run()
            _say_without_loaders(opened, ended)
            sys.exit(_exit_code(ended))

    def run() -> None:
        with Store.open(opened.folder) as store:
            for id in ids:
                store.own(id)
            with pushed(store.folder, ids):
                GroupsInTurn(store, records, listeners=listeners, tell=tell, orphans="keep").run()

    detach(run)
    for group in records:
        for record in group:
            typer.echo(record.id)


def _say_without_loaders(store: Store, ended: list[RunRecord]) -> None:
    """Name the runs that were to share, and have read no loader."""
    for record in ended:
        if record.plan.share and record.status == "finished" and "feed.batches" not in store.names(record.id):
            typer.echo(f"penstock: {record.name} shared nothing: it has iterated no DataLoader", err=True)


def _lines_below(store: Store, ids: list[str]) -> Callable[[], list[str]] | None:
    """Return what tells in a few lines of a terminal what several runs do; None without such a terminal."""
    if len(ids) == 1 or not sys.stdout.isatty() or os.environ.get("TERM", "dumb") in {"dumb", "unknown"}:
        return None

    @cache
    def looks() -> Looks:  # imported once the runs have begun
        from penstock.cli.runs_live import Looks

        return Looks(store)

    return lambda: looks().lines(ids)


def _exit_code(ended: list[RunRecord]) -> int:
    """Show how runs ended; return the exit code of the first that did not finish, else 0."""
    if len(ended) > 1:
        from penstock.basics.terminal import console
        from penstock.cli.runs_table import ended_table

        console().print(ended_table(ended), soft_wrap=True)
    elif ended[0].status not in ("finished", "failed") or ended[0].reason.startswith("died of "):
        typer.echo(f"penstock: run {ended[0].id}: {ended[0].status}: {ended[0].reason}", err=True)
    return next((record.exit_code or 1 for record in ended if record.status != "finished"), 0)
