"""``penstock schedule run``: runs a file's runs when, where and on which feeds the plan has them."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from penstock.basics.terminal import console, redraws, say, sized_console, told
from penstock.cli.command import AsJson, StoreFolder, argument, exit_code, folder_of_store, option, show
from penstock.errors import BadSetting

if TYPE_CHECKING:
    from penstock.runs.launch.launcher import RunEvent
    from penstock.runs.record import GroupPlan, RunRecord
    from penstock.runs.spec.open import Spec
    from penstock.schedule.jobs import GpuMachine, GpuMode
    from penstock.schedule.ledger import LedgerFile
    from penstock.schedule.present import LiveSchedule, PresentPlan


def run(
    spec: Annotated[Path, argument("SPEC", "A file of runs (.yaml, .csv), as `penstock run` takes it.")],
    dry_run: Annotated[bool, option("--dry-run", "Print the plan; start nothing.")] = False,
    explain: Annotated[
        str, option("Print why this run waits, and whom it would slow; start nothing.", metavar="NAME")
    ] = "",
    objective: Annotated[
        str, option("What is to be small: makespan or jct; the file's unless given.", metavar="WHAT")
    ] = "",
    policy: Annotated[str, option("fifo, spt, lpt, carma-magm, carma-lug, muri, plan.", metavar="NAME")] = "plan",
    share: Annotated[
        str, option("How runs on the same data may share feeds: none, all, split, finish.", metavar="WAYS")
    ] = "none,all,split,finish",
    store: StoreFolder = None,
    json: AsJson = False,
    plot: Annotated[Path | None, option("File for a picture of plan and course (PNG, SVG, PDF).")] = None,
) -> None:
    """Run a file's runs as planned; started again, it goes on where it was.

    Runs go on if this process ends. Those on the same data read one feed where that pays. Scripts need
    no change: they share by `penstock.share`, or by `share: true` in the file.
    """
    from penstock.basics.results import check_files
    from penstock.schedule.board import explain as explained

    check_files(plot=plot)
    is_dry = dry_run or bool(explain)
    with ExitStack() as stack:
        file, schedule, records, known = _opened(stack, spec, store, is_dry, objective, policy, share)
        for sentence in file.left_out:
            say(sentence)
        if not schedule.entries:
            typer.echo("Nothing is left to run: all runs of this file have ended.")
        elif is_dry:
            schedule.look()
            plan = schedule.plan(2.0) if schedule.unended() else None
            if explain:
                typer.echo("\n".join(explained(schedule, plan, explain)))
            else:
                _show(json, schedule, plan)
        else:
            known.write(schedule.ledger)
            _run(schedule, records, known)
            if plot:
                from penstock.schedule.board import picture

                picture(schedule).savefig(plot)
            with told("how it went"):
                _show(json, schedule, None)
            sys.exit(exit_code(schedule.record(entry) for entry in schedule.ledger.entries))


def _opened(
    stack: ExitStack, spec: Path, store: Path | None, is_dry: bool, objective: str, policy: str, share: str
) -> tuple[Spec, LiveSchedule, dict[str, RunRecord], LedgerFile]:
    """Open a file's schedule, begun before or now; with ``is_dry`` nothing of it is kept in the store."""
    from penstock.gpus.nvml import users_hidden
    from penstock.runs.record import RunRecord
    from penstock.runs.spec.checks import Gpus
    from penstock.runs.spec.open import Spec
    from penstock.runs.store import Store
    from penstock.schedule.estimates import Estimates, check_fits, dependencies
    from penstock.schedule.jobs import host_machine
    from penstock.schedule.ledger import LedgerFile, begin, claimed, ledger_of
    from penstock.schedule.partition import SHARINGS
    from penstock.schedule.planner import PLANNED, PUBLISHED, Objective, Planner
    from penstock.schedule.present import LiveSchedule
    from penstock.schedule.profiles import Profiles

    names = None if _one_of("--policy", policy, (*PUBLISHED, PLANNED)) == PLANNED else (policy,)
    sharings = tuple(_one_of("--share", name.strip(), SHARINGS) for name in share.split(","))
    file = stack.enter_context(Spec(spec, Gpus(), held=not is_dry))
    opened = stack.enter_context(Store.open(folder_of_store(store)))
    machine = host_machine(file.machine, mode_of_all(file.groups))
    wanted = _one_of("--objective", objective or file.machine.objective, get_args(Objective))
    known = LedgerFile(opened, file.path)
    before = known.read()
    ledger, records = ledger_of(file.groups, before), dict[str, RunRecord]()
    estimates = Estimates(ledger.entries, Profiles(opened.folder, machine.gpu), machine)
    if why := check_fits(ledger.entries, estimates, machine):
        raise BadSetting(why)
    if not is_dry and file.groups:
        stack.enter_context(claimed(machine.claims))
        records = begin(opened, file.groups, ledger)

    def planner(model: GpuMachine, most_s: float) -> Planner:
        return Planner(model, wanted, sharings=sharings, names=names, most_s=most_s, swaps_s=most_s / 4)

    needs = dependencies(ledger.entries, file.groups, in_turn=file.machine.in_turn)
    schedule = LiveSchedule(opened, ledger, machine, estimates, needs, planner)
    if before:
        say(f"this schedule was begun {schedule.elapsed_s:,.0f} s ago, and goes on")
    elif len(file.groups) > 1 and not any(needs.values()):
        say("groups order nothing here: `after` does, or machine: {groups: in turn}")
    if machine.devices and (why := users_hidden()):
        say(f"memory that others use on the GPUs counts as free: {why}")
    return file, schedule, records, known


def _one_of(flag: str, text: str, known: tuple[str, ...]) -> Any:
    if text not in known:
        raise BadSetting(f"{flag} {text}: {text!r} is not one of {', '.join(known)}")
    return text


def mode_of_all(groups: list[GroupPlan]) -> GpuMode:
    """Return the one mode of a file's groups."""
    modes = dict[str, str]()
    for group in groups:
        if (before := modes.setdefault(group.name, group.mode)) != group.mode:
            raise BadSetting(
                f"{group.name}: modes {before} and {group.mode}: a schedule runs each run once; name one mode"
            )
        if group.mode.startswith("mig"):
            raise BadSetting(
                f"{group.name}: mode {group.mode}: a schedule places runs on whole GPUs; penstock run starts it"
            )
    kinds = {*modes.values()} - {"alone"}
    if len(kinds) > 1:
        raise BadSetting("some groups are in mode plain, and some in mode mps: GPUs of one schedule have one mode")
    gang = next((run for group in groups for run in group.runs if (run.gpus or 1) > 1), None)
    if gang and "mps" in kinds:
        raise BadSetting(
            f"{gang.name}: gpus: {gang.gpus}: a schedule has no runs on several GPUs under MPS; penstock run has"
        )
    return "mps" if "mps" in kinds else "plain"


def _run(schedule: LiveSchedule, records: dict[str, RunRecord], known: LedgerFile) -> None:
    from penstock.runs.launch.launcher import RunEnded, RunPrinted
    from penstock.runs.launch.terminal import Prefixed
    from penstock.schedule.execution import Execution

    newest: list[PresentPlan] = []
    is_terminal = redraws()
    shown = Prefixed([*schedule.entries], (lambda: _lines(schedule, newest[-1])) if is_terminal else None)
    places = {name: place for place, name in enumerate(schedule.entries)}

    def on_event(name: str, event: RunEvent) -> None:
        match event:
            case RunPrinted(_, descriptor, data):
                shown.add(places[name], descriptor, data)
            case RunEnded(id):
                shown.close(places[name])
                if not is_terminal:
                    say(f"{name} has ended: {schedule.store.run(id).status}")
            case _:
                if not is_terminal:
                    say(f"{name} has begun")

    def tick(plan: PresentPlan) -> float | None:
        newest[:] = [plan]
        return shown.refresh()

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the runs go on
    try:
        Execution(schedule, records, known, show=on_event, tick=tick).run()
    except KeyboardInterrupt:
        shown.end()
        counts = f"{len(schedule.running)} runs go on, {len(schedule.waiting)} wait"
        say(
            f"{counts}: the same command goes on with them; penstock runs stop ends a run. "
            "Until then penstock runs ls calls those that wait lost"
        )
        sys.exit(130)
    shown.end()


def _lines(schedule: LiveSchedule, plan: PresentPlan) -> list[str]:
    from penstock.schedule.board import page

    shown = sized_console()
    with shown.capture() as captured:
        shown.print(page(schedule, plan, shown.width))
    return captured.get().splitlines()[: max(3, shown.height - 3)]


def _show(as_json: bool, schedule: LiveSchedule, plan: PresentPlan | None) -> None:
    """Show a plan; or, without one, how it went."""
    from penstock.schedule.board import page, summary

    width = console().width
    show(as_json, summary(schedule, plan), lambda: page(schedule, plan, width))
