"""Why a run waits, and whom it would slow, in numbers of the plan's model."""

from __future__ import annotations

from penstock.errors import BadSetting
from penstock.schedule.jobs import alone_sample_s
from penstock.schedule.partition import rates_together
from penstock.schedule.present import LiveSchedule, PresentPlan
from penstock.schedule.rates import Placed
from penstock.schedule.simulate import Running, State

_GIB = 2**30


def explain(schedule: LiveSchedule, plan: PresentPlan | None, name: str) -> list[str]:
    """Say in sentences how a run stands, and what would be if it started now."""
    if name not in schedule.entries:
        there = ", ".join(schedule.entries)
        raise BadSetting(f"--explain {name}: no run of the file has this name; there are {there}")
    if plan is None or name not in plan.names:
        record = schedule.record(schedule.entries[name])
        return [f"{name} has ended: {record.status} {record.reason}".rstrip()]
    number = plan.names.index(name)
    expected = plan.chosen.outcome.runs.get(number)
    if name in schedule.running:
        beside = schedule.neighbours(name)
        company = f"beside {_and(beside)}" if beside else "alone"
        until = f", until {plan.at_s + expected.end_s:,.0f} s" if expected else ""
        return [f"{name} runs{_where(schedule, schedule.entries[name].gpus)}, {company}{until}."]
    job = plan.jobs[number]
    lines = [_when(schedule, plan, name)]
    is_known = schedule.estimates.source(schedule.entries[name]) != "unknown"
    alike = [each.name for each in plan.jobs if each.data and each.data == job.data and each is not job]
    if alike and is_known:
        lines.append(f"It reads what {_and(alike)} read{'s' if len(alike) == 1 else ''}.")
    if not is_known:
        takes = "it takes a whole GPU" if job.gpus else "its length is a guess"
        lines.append(f"Nothing is known of it: until it has been measured {takes}.")
    if job.after:
        return [*lines, f"It comes after {_and(sorted(job.after))}."]
    if not job.gpus or (expected and expected.start_s <= 0):
        return lines
    return lines + [_on(schedule, plan, number, gpu) for gpu in range(plan.model.gpus)]


def _when(schedule: LiveSchedule, plan: PresentPlan, name: str) -> str:
    expected = plan.chosen.outcome.runs.get(plan.names.index(name))
    if expected is None:
        return f"{name} waits, and the plan has no room for it."
    if expected.start_s <= 0:
        return f"{name} starts now{_where(schedule, expected.gpus)}."
    at = plan.at_s + expected.start_s
    return f"{name} waits: the plan starts it at {at:,.0f} s{_where(schedule, expected.gpus)}."


def _on(schedule: LiveSchedule, plan: PresentPlan, number: int, gpu: int) -> str:
    """Say what would be if a run started on a GPU now."""
    model, job = plan.model, plan.jobs[number]
    state = State(plan.jobs, model, _now(plan, number))
    where = f"On GPU {gpu}" if schedule.machine.has_gpus else "Here"
    if job.devices and gpu not in job.devices:
        return f"{where}: its file names other GPUs."
    there = [plan.jobs[i] for i in state.on[gpu]]
    if alone := [each.name for each in there if each.alone or job.alone]:
        return f"{where}: {_and(alone)} runs there, and one of the two needs the GPU for itself."
    if job.memory_bytes > state.free_bytes[gpu]:
        free = max(0.0, state.free_bytes[gpu]) / _GIB
        return f"{where}: it needs {job.memory_bytes / _GIB:.1f} GiB, and {free:.1f} GiB are free."
    if not model.goes_beside(job, there):
        apart = [other.name for other in there if model.pairs.get((job.kind, other.kind)) == 0]
        return f"{where}: never again beside {_and(apart)}, which was slower together, or ran out of memory."
    return f"{where} now, {_rates(plan, number, gpu)}."


def _rates(plan: PresentPlan, number: int, gpu: int) -> str:
    """Say how fast a run would be, and whom it would slow."""
    model, job = plan.model, plan.jobs[number]
    before = [Placed.on(plan.jobs[each.job], each.gpus, model) for each in _now(plan, number)]
    gpus = tuple((gpu + k) % model.gpus for k in range(job.gpus))
    both = [[*before, Placed.on(job, gpus, model)], before]
    with_it, without = (
        rates_together(placed, [each.job.samples for each in placed], 0, model, plan.chosen.sharing)[0]
        for placed in both
    )
    alone = with_it[-1] * alone_sample_s(job, model)
    slowed = [
        f"{each.job.name} from {old:,.0f} to {new:,.0f}"
        for each, old, new in zip(before, without, with_it, strict=False)
        if new < 0.99 * old
    ]
    whom = f"; it would slow {_and(slowed)} samples/s" if slowed else "; it would slow nobody"
    return f"it would train {with_it[-1]:,.0f} samples/s, {alone:.0%} of its rate alone{whom if before else ''}"


def _now(plan: PresentPlan, number: int) -> list[Running]:
    """Return the runs that run, and the others that the plan starts now."""
    runs = plan.chosen.outcome.runs.values()
    there = {each.job for each in plan.running}
    return plan.running + [
        Running(run.job, run.gpus)
        for run in runs
        if run.start_s <= 0 and run.job != number and run.job not in there
    ]


def _where(schedule: LiveSchedule, gpus: tuple[int, ...]) -> str:
    return f" on GPU {'+'.join(map(str, gpus))}" if gpus and schedule.machine.has_gpus else ""


def _and(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
