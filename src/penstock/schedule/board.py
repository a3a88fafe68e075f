"""A schedule as people see it: a table of its runs, a Gantt chart of text, and a picture of plan and course."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.basics.lanes import Bar, rows_of
from penstock.basics.results import results_table
from penstock.basics.terminal import printable
from penstock.schedule.jobs import contention
from penstock.schedule.ledger import Expected
from penstock.schedule.present import LiveSchedule, PresentPlan

_KNOWN = {"measured": "yes", "like a sibling": "alike", "unknown": "no"}
_COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red", "bright_cyan", "bright_yellow")


def times(schedule: LiveSchedule, plan: PresentPlan | None) -> dict[str, Expected]:
    """Return when and where each run ran, runs or is to run."""
    found = {each.name: each for each in plan.expected()} if plan else {}
    for entry in schedule.ledger.entries:
        record = schedule.record(entry)
        if record.began is not None:
            start_s = record.began - schedule.ledger.began_s
            end_s = start_s + (record.seconds or 0.0)
            if entry.name in found:
                end_s = max(end_s, found[entry.name].end_s)
            found[entry.name] = Expected(entry.name, entry.gpus, start_s, end_s)
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


def table(schedule: LiveSchedule, plan: PresentPlan | None) -> Table:
    """Show each run: where it runs, on which feed, how far it is, and when it is to end."""
    shown = results_table("run", "GPU", "feed", "status", "done", "samples/s", "starts, s", "ends, s", "known")
    found = times(schedule, plan)
    for number, entry in enumerate(schedule.ledger.entries):
        record, its = schedule.record(entry), found.get(entry.name)
        watched, waits = schedule.watched.get(entry.name), entry.name in schedule.waiting
        newest, seen = (watched.newest, watched.seen(3.0)) if watched else (None, None)
        in_all, is_assumed = schedule.estimates.samples(entry)
        done = (entry.trained + newest.samples) / in_all if newest else float(record.status == "finished")
        shown.add_row(
            f"{number + 1:>2} {printable(entry.name)}",
            "+".join(map(str, its.gpus)) if its and schedule.machine.has_gpus else "",
            "" if waits else entry.feed,
            "waiting" if waits else record.status,
            f"{min(done, 1.0):.0%}{' ?' if is_assumed else ''}",
            f"{seen.costs.samples_per_s:,.0f}" if seen else "",
            f"{its.start_s:,.0f}" if its else "",
            f"{its.end_s:,.0f}" if its else "",
            _KNOWN[schedule.estimates.source(entry)],
        )
    return shown


def chart(all_bars: Sequence[Bar], width: int, now_s: float = 0.0) -> Text:
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
    firsts = {sum(heights[:gpu]): f"GPU {gpu}" for gpu in range(len(heights))}
    for number, line in enumerate(cells):
        text.append(f"{firsts.get(number, ''):<7}", "dim")
        for letter, style in line[:room]:
            text.append(letter, style)
        text.append("\n")
    return text.append(f"{'':<7}0{f'{end_s:,.0f} s':>{room - 1}}", "dim")


def page(schedule: LiveSchedule, plan: PresentPlan | None, width: int) -> RenderableType:
    """Show a schedule as it stands."""
    parts: list[RenderableType] = [table(schedule, plan)]
    if all_bars := bars(schedule, plan):
        parts.append(chart(all_bars, width, schedule.elapsed_s if schedule.running else 0.0))
    if plan:
        parts += _about(schedule, plan)
    return Group(*parts)


def _about(schedule: LiveSchedule, plan: PresentPlan) -> list[Text]:
    """Say what the plan is, and what it rests on."""
    sources = [schedule.estimates.source(schedule.entries[name]) for name in schedule.unended()]
    ends_s = plan.at_s + plan.chosen.outcome.makespan_s
    about = f"plan: {plan.chosen.name}, feeds: {plan.chosen.sharing}, all ended at {ends_s:,.0f} s"
    if unknown := sources.count("unknown"):
        more = f"{unknown} runs are unknown, and their times guesses: penstock schedule profile measures them"
        return [Text(more, "yellow"), Text(about)]
    rho = contention(plan.jobs, plan.model)
    return [Text(f"{about}; ρ = {rho:.2f}" + (": sharing data saves CPU time only" if rho <= 1 else ""))]


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
    names = [f"{when}, GPU {gpu}" for when in ("planned", "run") for gpu in range(gpus)]
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
            "planned_start_s": planned.start_s if (planned := first.get(entry.name)) else None,
            "planned_end_s": planned.end_s if planned else None,
            "known": schedule.estimates.source(entry),
        }
        for entry in schedule.ledger.entries
    ]
    return {
        "runs": runs,
        "makespan_s": max((each.end_s for each in went.values()), default=0.0),
        "planned_makespan_s": max((each.end_s for each in first.values()), default=None),
    }
