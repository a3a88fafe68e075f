"""Policies side by side in the model, and what sharing data gains where cores are fewer or more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.bench.experiment import results_table
from penstock.bench.lanes import Bar
from penstock.schedule.jobs import GpuMachine, Job, contention, least_makespan_s
from penstock.schedule.partition import SHARINGS, Sharing
from penstock.schedule.planner import Objective, Planner, PolicyPlan
from penstock.schedule.traces import Trace

PLANNED = "plan"
"""The planner itself: the best policy and what exchanges make of it."""
_CORES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Parts of the machine's cores for which the gain is shown."""


class PolicyRow(NamedTuple):
    """How a policy goes with a way of sharing."""

    policy: str
    sharing: Sharing  # the way of sharing
    makespan_s: float  # when all have ended; infinite if some job is never run
    jct_s: float  # mean time from arrival to end
    plan: PolicyPlan


class Study(NamedTuple):
    """Policies compared on one set of jobs."""

    jobs: Sequence[Job]
    machine: GpuMachine  # what they run on
    objective: Objective  # what was to be small
    rows: tuple[PolicyRow, ...]  # each policy by each way of sharing
    gains: tuple[tuple[float, float], ...]
    """By ρ, the objective of the best plan with sharing over that of the best without."""

    @property
    def best(self) -> PolicyRow:
        return min(self.rows, key=lambda row: row.plan.cost)

    def as_json(self) -> dict[str, Any]:
        """Return what was found, as plain values."""
        return {
            "jobs": len(self.jobs),
            "gpus": self.machine.gpus,
            "cores": self.machine.cores,
            "objective": self.objective,
            "rho": contention(self.jobs, self.machine),
            "least_makespan_s": least_makespan_s(self.jobs, self.machine),
            "policies": [
                {
                    "policy": row.policy,
                    "share": row.sharing,
                    "makespan_s": row.makespan_s,
                    "mean_jct_s": row.jct_s,
                    "chosen": row.plan.name,
                }
                for row in self.rows
            ],
            "gains": [{"rho": rho, "with_over_without": gain} for rho, gain in self.gains],
        }


def compared(
    jobs: Sequence[Job],
    machine: GpuMachine,
    objective: Objective,
    names: Sequence[str],
    sharings: Sequence[Sharing],
    seed: int,
) -> Iterator[PolicyRow]:
    """Simulate each policy with each way of sharing."""
    for name in names:
        for sharing in sharings:
            planner = Planner(
                machine, objective, sharings=(sharing,), names=None if name == PLANNED else (name,), seed=seed
            )
            plan = planner.plan(jobs)
            stuck = bool(plan.outcome.stuck)
            yield PolicyRow(
                name,
                sharing,
                plan.outcome.makespan_s,
                float("inf") if stuck else plan.outcome.mean_jct_s(jobs),
                plan,
            )


def gains(
    jobs: Sequence[Job], machine: GpuMachine, objective: Objective, seed: int
) -> Iterator[tuple[float, float]]:
    """Compare the best plan with sharing and the best without, on machines with fewer and more cores."""
    sharings: tuple[tuple[Sharing, ...], ...] = (SHARINGS, ("none",))
    for part in reversed(_CORES):
        other = msgspec.structs.replace(machine, cores=max(1.0, machine.cores * part))
        shared, apart = (
            Planner(other, objective, sharings=each, most_s=1.0, swaps_s=0.2, seed=seed).plan(jobs).cost
            for each in sharings
        )
        yield contention(jobs, other), shared / apart


def study_page(study: Study, about: str, trace: Trace) -> Group:
    """Show a study: its policies, the gain of sharing, and what its trace does not say."""
    notes = [f"Left out: {number} jobs that {why}." for why, number in trace.left_out.items()]
    parts: list[RenderableType] = [
        Text(about),
        _table(study),
        *(Text(line, style="dim") for line in (*notes, *trace.assumed)),
    ]
    if study.gains:
        pairs = ", ".join(f"{gain:.2f} at ρ {rho:.1f}" for rho, gain in study.gains)
        parts.append(Text(f"Best plan with shared feeds ÷ best without, with other numbers of cores: {pairs}"))
    return Group(*parts)


def _table(study: Study) -> Table:
    """Show the rows, that with the best objective in bold."""
    shown = results_table("policy, share", "makespan, h", "of FIFO's", "mean JCT, h")
    first = next((row for row in study.rows if (row.policy, row.sharing) == ("fifo", "none")), None)
    for row in study.rows:
        cells = (
            f"{row.policy}, {row.sharing}{f' ({row.plan.name})' if row.policy == PLANNED else ''}",
            _hours(row.makespan_s),
            f"{row.makespan_s / first.makespan_s:.2f}" if first else "",
            _hours(row.jct_s),
        )
        shown.add_row(*cells, style="bold" if row is study.best else "")
    return shown


def picture(study: Study, about: str) -> Any:
    """Draw the best plan by GPU, and the gain of sharing against ρ."""
    from penstock.bench.picture import AFTER, Curve, Mark, Panel, gantt_picture

    best, hour = study.best, 3600.0
    data = list(dict.fromkeys(job.data for job in study.jobs))
    bars = [
        Bar(
            gpu,
            run.start_s / hour,
            run.end_s / hour,
            study.jobs[run.job].name,
            data.index(study.jobs[run.job].data),
        )
        for run in best.plan.outcome.runs.values()
        for gpu in run.gpus
    ]
    marks = [Mark(rho, gain, f"{gain:.2f}") for rho, gain in study.gains]
    gain = Panel(
        "Sharing's gain",
        [Curve("with sharing ÷ without", AFTER, marks)],
        "ρ: cores that preparation would keep busy ÷ cores",
        f"{'makespan' if study.objective == 'makespan' else 'mean JCT'} of the best plans",
    )
    names = [name or "shared with nobody" for name in data]
    title = f"{len(study.jobs)} jobs in {_hours(best.makespan_s)} h by {best.policy}, share {best.sharing}"
    return gantt_picture(title, about, bars, names, "hours", gain if study.gains else None)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.2f}"
