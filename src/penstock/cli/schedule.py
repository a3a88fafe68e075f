"""``penstock schedule``: which runs run when, where and on which feed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from penstock.basics.terminal import console
from penstock.cli.command import AsJson, Command, Group, option, show
from penstock.cli.schedule_profile import profile
from penstock.cli.schedule_run import run
from penstock.errors import BadSetting

app = typer.Typer(cls=Group, help="Plan which runs run when, where and on which feed.", no_args_is_help=True)


@app.callback()
def schedule() -> None:
    """Plan which runs run when, where and on which feed."""


app.command(cls=Command)(profile)
app.command(cls=Command)(run)


@app.command(cls=Command)
def simulate(
    trace: Annotated[
        str,
        option(
            "gavel:FILE, muri:FILE or tiresias:FILE; synergy:24 for 24 drawn jobs; or a JSON list of jobs.",
            metavar="TRACE",
        ),
    ] = "synergy:24",
    policy: Annotated[
        str, option("fifo, spt, lpt, carma-magm, carma-lug, muri, plan; with commas.", metavar="NAMES")
    ] = "fifo,spt,carma-magm,carma-lug,muri,plan",
    share: Annotated[
        str, option("How jobs on the same data share feeds: none, all, split, finish.", metavar="WAYS")
    ] = "none,all,split",
    gpus: Annotated[int, option("GPUs.", min=1, max=64)] = 4,
    cores: Annotated[float, option("CPU cores.", min=1)] = 12,
    memory: Annotated[str, option("Memory of each GPU.", metavar="SIZE")] = "16GiB",
    mode: Annotated[str, option("How jobs share a GPU: plain or mps.", metavar="MODE")] = "plain",
    objective: Annotated[str, option("What is to be small: makespan or jct.", metavar="WHAT")] = "makespan",
    same_data: Annotated[float, option("Part of the drawn jobs on one data set.", min=0, max=1)] = 1.0,
    seed: Annotated[int, option("Seed of the drawn jobs, and of the planner's exchanges.", min=0)] = 0,
    json: AsJson = False,
    plot: Annotated[Path | None, option("File for a picture (PNG, SVG, PDF).", metavar="FILE")] = None,
) -> None:
    """Compare policies, with and without shared feeds, in a model of this machine or another.

    Nothing runs. Rates are those of the planner's model: a feed prepares its data once for all its members, GPUs
    are shared in turns, memory is a limit.
    """
    from penstock.basics.sizes import size_from
    from penstock.bench.experiment import check_files, progress
    from penstock.schedule.jobs import GpuMachine, GpuMode, contention, least_makespan_s
    from penstock.schedule.partition import SHARINGS
    from penstock.schedule.planner import PUBLISHED, Objective
    from penstock.schedule.study import PLANNED, Study, compared, gains, picture, study_page
    from penstock.schedule.traces import read_trace

    names = names_in("--policy", policy, (*PUBLISHED, PLANNED))
    sharings: Any = names_in("--share", share, SHARINGS)
    wanted = one_of("--objective", objective, get_args(Objective))
    check_files(plot=plot)
    found = read_trace(trace, gpus=gpus, same_data=same_data, seed=seed)
    usable = 0.95 * size_from("--memory", memory)
    if too_large := [job.name for job in found.jobs if job.memory_bytes > usable]:
        more = f" ({len(too_large)} jobs do)" if too_large[1:] else ""
        raise BadSetting(f"{too_large[0]} needs more memory than a GPU of {memory} has, less 5%{more}")
    machine = GpuMachine(
        cores=cores,
        memories=(usable,) * gpus,
        mode=one_of("--mode", mode, get_args(GpuMode)),
        pairs=found.pairs,
        most_on_gpu=2 if found.pairs else len(found.jobs),
    )
    both = {*sharings} > {"none"}
    rows, gained = list[Any](), list[tuple[float, float]]()
    steps = len(names) * len(sharings) + 5 * both
    with progress(console(stderr=True)) as tell:
        for row in compared(found.jobs, machine, wanted, names, sharings, seed):
            rows.append(row)
            tell(len(rows), steps, f"{row.policy}, {row.sharing}")
        for each in gains(found.jobs, machine, wanted, seed) if both else ():
            gained.append(each)
            tell(len(rows) + len(gained), steps, f"ρ = {each[0]:.1f}")
    study = Study(found.jobs, machine, wanted, tuple(rows), tuple(gained))
    about = (
        f"{len(found.jobs)} jobs, {gpus} GPUs, {cores:g} cores, ρ = {contention(found.jobs, machine):.2f}; "
        f"no plan is shorter than {least_makespan_s(found.jobs, machine) / 3600:.2f} h"
    )
    if plot:
        picture(study, about).savefig(plot)
    found_json = {**study.as_json(), "left_out": dict(found.left_out), "assumed": found.assumed}
    show(json, found_json, lambda: study_page(study, about, found))


def names_in(flag: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if wrong := [name for name in names if name not in known]:
        raise BadSetting(f"{flag} {text}: {wrong[0]!r} is not one of {', '.join(known)}")
    return names


def one_of(flag: str, text: str, known: tuple[str, ...]) -> Any:
    if text not in known:
        raise BadSetting(f"{flag} {text}: {text!r} is not one of {', '.join(known)}")
    return text
