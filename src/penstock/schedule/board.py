"""A schedule as people see it: a table of its runs, a Gantt chart of text, and a picture of plan and course."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.basics.lanes import Bar, rows_of
from penstock.basics.results import results_table
from penstock.basics.terminal import is_wide, printable
from penstock.errors import BadSetting
from penstock.schedule.jobs import alone_sample_s, contention
from penstock.schedule.ledger import Entry, Expected
from penstock.schedule.partition import Placed, rates_together
from penstock.schedule.present import LiveSchedule, PresentPlan
from penstock.schedule.simulate import Running, State

_KNOWN = {"measured": "yes", "like a sibling": "alike", "unknown": "no"}
_COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red", "bright_cyan", "bright_yellow")


def times(schedule: LiveSchedule, plan: PresentPlan | None) -> dict[str, Expected]:
    """Return when and where each run ran, runs or is to run."""
    found = {each.name: each for each in plan.expected()} if plan else {}
    for entry in schedule.ledger.entries:
        record = schedule.record(entry)
        if record.began is not None:
            start_s = record.began - schedule.ledger.began_s
            end_s, by_guess = start_s + (record.seconds or 0.0), False
            if its := found.get(entry.name):
                end_s, by_guess = max(end_s, its.end_s), its.ends_by_guess
            found[entry.name] = Expected(entry.name, entry.gpus, start_s, end_s, False, by_guess)
    return found


def bars(schedule: LiveSchedule, plan: PresentPlan | None) -> list[Bar]:
    """Return the same by GPU, with the number of each run."""
    found = times(schedule, plan)
    return [
        Bar(gpu, found[name].start_s, found[name].end_s, name, number)
        for number, name in enumerate(schedule.entries)
        if name in found
        for gpu in found[name].gpus
    ]


_HEADINGS = ("run", "GPU", "feed", "status", "done", "samples/s", "starts, s", "ends, s", "known")
_ON_NARROW = {"run", "status", "done", "ends, s"}


def table(schedule: LiveSchedule, plan: PresentPlan | None, width: int) -> Table:
    """Show each run: where it runs, on which feed, how far it is, and when it is to end."""
    kept = [heading for heading in _HEADINGS if is_wide(width) or heading in _ON_NARROW]
    shown = results_table(*kept)
    found = times(schedule, plan)
    for number, entry in enumerate(schedule.ledger.entries):
        record, its = schedule.record(entry), found.get(entry.name)
        watched, waits = schedule.watched.get(entry.name), entry.name in schedule.waiting
        newest, seen = (watched.newest, watched.seen(3.0)) if watched else (None, None)
        in_all, is_assumed = schedule.estimates.samples(entry)
        done = (entry.trained + newest.samples) / in_all if newest else float(record.status == "finished")
        cells = (
            f"{number + 1:>2} {printable(entry.name)}",
            "+".join(map(str, its.gpus)) if its and schedule.machine.has_gpus else "",
            "" if waits else entry.feed,
            "waiting" if waits else record.status,
            f"{min(done, 1.0):.0%}{' ?' if is_assumed else ''}",
            f"{seen.costs.samples_per_s:,.0f}" if seen else "",
            its.start if its else "",
            f"{its.end}{' late' if is_late(entry, its) else ''}" if its else "",
            _KNOWN[schedule.estimates.source(entry)],
        )
        shown.add_row(*(cell for heading, cell in zip(_HEADINGS, cells, strict=True) if heading in kept))
    return shown


def is_late(entry: Entry, its: Expected | None) -> bool:
    """Whether a run ends, or is to end, after its deadline."""
    return its is not None and entry.plan.deadline_s is not None and its.end_s > entry.plan.deadline_s


def chart(all_bars: Sequence[Bar], width: int, now_s: float = 0.0, *, has_gpus: bool = True) -> Text:
    """Draw bars by GPU in lines of text, with their groups' numbers from 1; those that are over are weaker.

    There are ``width`` columns, and a line marks the present, ``now_s``.
    """
    text, end_s = Text(no_wrap=True), max((bar.end for bar in all_bars), default=1.0)
    room = max(20, width - 8)
    rows, heights = rows_of(all_bars)
    now = int(now_s / end_s * (room - 1))
    free = [("│" if now_s > 0 and place == now else " ", "") for place in range(room)]
    cells = [[*free] for _ in range(sum(heights))]
    for bar, row in zip(all_bars, rows, strict=True):
        first = int(bar.start / end_s * (room - 1))
        last = max(first + 1, int(bar.end / end_s * room))
        is_over = bar.end <= now_s
        label = f"{bar.group + 1}".center(last - first, "·" if is_over else "█")[: last - first]
        style = f"{'dim ' if is_over else ''}{_COLOURS[bar.group % len(_COLOURS)]}"
        cells[row][first:last] = [(letter, style) for letter in label]
    firsts = {sum(heights[:gpu]): f"GPU {gpu}" if has_gpus else "CPUs" for gpu in range(len(heights))}
    for number, line in enumerate(cells):
        text.append(f"{firsts.get(number, ''):<7}", "dim")
        for letter, style in line[:room]:
            text.append(letter, style)
        text.append("\n")
    return text.append(f"{'':<7}0{f'{end_s:,.0f} s':>{room - 1}}", "dim")


def page(schedule: LiveSchedule, plan: PresentPlan | None, width: int) -> RenderableType:
    """Show a schedule as it stands."""
    parts: list[RenderableType] = [table(schedule, plan, width)]
    if all_bars := bars(schedule, plan):
        now_s = schedule.elapsed_s if schedule.running else 0.0
        parts.append(chart(all_bars, width, now_s, has_gpus=schedule.machine.has_gpus))
    if plan:
        parts += _about(schedule, plan)
    return Group(*parts)


def _about(schedule: LiveSchedule, plan: PresentPlan) -> list[Text]:
    """Say what the plan is, what it rests on, and who misses a deadline by it."""
    found = times(schedule, plan)
    late = [
        Text(f"{name}: {_late(entry, found[name])}", "yellow")
        for name, entry in schedule.entries.items()
        if name in plan.names and is_late(entry, found.get(name))
    ]
    sources = [schedule.estimates.source(schedule.entries[name]) for name in schedule.unended()]
    ends_s = plan.at_s + plan.chosen.outcome.makespan_s
    guess = "~" if any(plan.guesses) else ""
    about = f"plan: {plan.chosen.name}, feeds: {plan.chosen.sharing}, all ended at {guess}{ends_s:,.0f} s"
    if unknown := sources.count("unknown"):
        more = f"{unknown} runs are unknown, and their times guesses: penstock schedule profile measures them"
        return [*late, Text(more, "yellow"), Text(about)]
    if schedule.machine.has_gpus:
        rho = contention(plan.jobs, plan.model)
        about += f"; ρ = {rho:.2f}" + (": sharing data saves CPU time only" if rho <= 1 else "")
    return [*late, Text(about)]


def _late(entry: Entry, its: Expected) -> str:
    return f"it is to end at {its.end} s, and its deadline is at {entry.plan.deadline_s or 0:,.0f} s"


def picture(schedule: LiveSchedule) -> Any:
    """Draw the first plan, and below it how it went."""
    from penstock.basics.pictures import gantt_picture

    gpus = schedule.machine.model.gpus
    read = {name: schedule.estimates.data(entry) for name, entry in schedule.entries.items()}
    data = list(dict.fromkeys(read.values()))
    group = {name: data.index(each) for name, each in read.items()}
    went = bars(schedule, None)
    planned = [
        Bar(gpu, each.start_s, each.end_s, each.name, group[each.name])
        for each in schedule.ledger.expected
        for gpu in each.gpus
        if each.name in group
    ]
    drawn = [*planned, *(bar._replace(lane=gpus + bar.lane, group=group[bar.label]) for bar in went)]
    ends = [max((bar.end for bar in some), default=0.0) for some in (planned, went)]
    title = f"{len(went)} runs: {ends[0]:,.0f} s planned, {ends[1]:,.0f} s measured"
    has_gpus = schedule.machine.has_gpus
    names = [f"{when}, GPU {gpu}" if has_gpus else when for when in ("planned", "run") for gpu in range(gpus)]
    groups = [name.partition(":")[0] or "own data" for name in data]
    return gantt_picture(title, "", drawn, groups, "seconds", lanes=names)


def summary(schedule: LiveSchedule, plan: PresentPlan | None) -> dict[str, Any]:
    """Return a plan, or how it went, as plain values; times in seconds from the schedule's start."""
    went, first = times(schedule, plan), {each.name: each for each in schedule.ledger.expected}
    runs = [
        {
            "name": entry.name,
            "id": entry.id,
            "status": schedule.record(entry).status,
            "gpus": entry.gpus,
            "feed": entry.feed,
            "start_s": its.start_s if (its := went.get(entry.name)) else None,
            "end_s": its.end_s if its else None,
            "ends_by_guess": bool(its and its.ends_by_guess),
            "planned_start_s": planned.start_s if (planned := first.get(entry.name)) else None,
            "planned_end_s": planned.end_s if planned else None,
            "planned_by_guess": bool(planned and planned.ends_by_guess),
            "deadline_s": entry.plan.deadline_s,
            "known": schedule.estimates.source(entry),
        }
        for entry in schedule.ledger.entries
    ]
    return {
        "runs": runs,
        "makespan_s": max((each.end_s for each in went.values()), default=0.0),
        "planned_makespan_s": max((each.end_s for each in first.values()), default=None),
    }


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
    expected, its = plan.chosen.outcome.runs.get(number), times(schedule, plan).get(name)
    entry = schedule.entries[name]
    late = [f"{_late(entry, its).capitalize()}."] if its and is_late(entry, its) else []
    if name in schedule.running:
        beside = schedule.neighbours(name)
        company = f"beside {_and(beside)}" if beside else "alone"
        until = f", until {its.end} s" if its and expected else ""
        return [f"{name} runs{_where(schedule, entry.gpus)}, {company}{until}.", *late]
    job = plan.jobs[number]
    lines = [_when(schedule, plan, name), *late]
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
    [its] = [each for each in plan.expected() if each.name == name]
    return f"{name} waits: the plan starts it at {its.start} s{_where(schedule, its.gpus)}."


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
