"""``penstock schedule``: which runs run when, where and on which feed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.basics.terminal import console, say
from penstock.cli.command import AsJson, Command, Group, StoreFolder, argument, option, show
from penstock.cli.schedule_run import run

if TYPE_CHECKING:
    from rich.console import Group as Page

    from penstock.schedule.profiles import Profile


def profile(
    spec: Annotated[Path, argument("SPEC", "A file of runs (.yaml, .csv), as `penstock run` takes it.")],
    again: Annotated[bool, option("--again", "Also measure runs that have been measured.")] = False,
    store: StoreFolder = None,
    json: AsJson = False,
) -> None:
    """Measure what a sample of each run costs, one run after the other, each within 60 s.

    Each is started as it is. Then its loader alone is asked, then one batch is trained on again and again, and the
    run is ended: it is none of the store's. What was measured is kept until its script changes.
    """
    from msgspec.structs import replace

    from penstock.basics.results import progress
    from penstock.runs.spec.checks import Gpus
    from penstock.runs.spec.open import Spec
    from penstock.runs.store import Store
    from penstock.schedule.jobs import Job, contention, host_machine
    from penstock.schedule.profile import NotProfiled, profiled
    from penstock.schedule.profiles import Profiles

    with Spec(spec, Gpus()) as file, Store.open(store) as opened, progress(console(stderr=True)) as tell:
        machine = host_machine(file.machine, "plain")
        profiles = Profiles(opened.folder, machine.gpu)
        plans = [plan for group in file.groups for plan in group.runs]
        keys = [*map(profiles.key, plans)]
        tried, failed = set[str](), 0
        for done, (plan, key) in enumerate(zip(plans, keys, strict=True)):
            before = profiles.get(key)
            is_known = before is not None and before.samples_per_epoch is not None and not again
            if not is_known and key not in tried:
                tried.add(key)
                try:
                    measured = profiled(
                        opened,
                        plan,
                        has_gpus=bool(machine.devices),
                        variables={"CUDA_VISIBLE_DEVICES": "0"} if machine.simulated else {},
                        on_phase=lambda phase, at=done, name=plan.name: tell(at, len(plans), f"{name}: {phase}"),
                    )
                    profiles.put(key, replace(measured, samples=before.samples if before else None))
                except NotProfiled as error:
                    needs_others = all(other.after for other, its in zip(plans, keys, strict=True) if its == key)
                    why = "; it may need what those leave that come before it"
                    say(f"{error}{why * (needs_others and 'before its first batch' in str(error))}")
                    failed += not needs_others
        found = {plan.name: known for plan, key in zip(plans, keys, strict=True) if (known := profiles.get(key))}
    jobs = [
        Job(name=name, samples=1.0, preparation_s=each.preparation_s, gpu_s=each.gpu_s)
        for name, each in found.items()
    ]
    rho = contention(jobs, machine.model)
    if found or json:
        show(json, {"profiles": found, "contention": rho}, lambda: _page(found, rho))
    sys.exit(1 if failed else 0)


def _page(found: Mapping[str, Profile], rho: float) -> Page:
    from rich.console import Group as Page

    from penstock.basics.results import results_table, short
    from penstock.basics.sizes import size_text

    headings = ("samples/epoch", "prepare ms", "own ms", "GPU ms", "start s", "memory", "data")
    table = results_table("run", *headings)
    for name, each in found.items():
        epoch = "" if each.samples_per_epoch is None else f"{each.samples_per_epoch:,}"
        costs_ms = (short(1000 * cost_s) for cost_s in (each.preparation_s, each.own_s, each.gpu_s))
        memory = "" if each.memory_bytes is None else size_text(each.memory_bytes)
        table.add_row(name, epoch, *costs_ms, short(each.start_s), memory, each.data.partition(":")[0])
    says = f"ρ = {rho:.2f}: " + (
        "the cores keep up; sharing data saves CPU time, and no other time"
        if rho <= 1
        else "runs wait for data; those on the same data gain by one feed"
    )
    return Page(table, "", says)


app = typer.Typer(cls=Group, help="Plan which runs run when, where and on which feed.", no_args_is_help=True)
app.command(cls=Command)(profile)
app.command(cls=Command)(run)
