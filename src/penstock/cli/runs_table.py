"""Runs as tables for a terminal of 80 columns, and what they do at the moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.basics.terminal import is_wide, printable, sized_console
from penstock.cli.command import plain_table
from penstock.runs.compare import MUCH_WAITING, Comparison, GroupFigures, group_figures
from penstock.runs.figures import RunFigures
from penstock.runs.glance import RECENT_S, Glance, Recent, glance, is_glanced_at
from penstock.runs.record import ENDED, RunRecord
from penstock.runs.store import Store

_STYLES = {"running": "bold cyan", "finished": "green", "waiting": "dim"}


def runs_table(runs: Sequence[RunRecord], memory: Mapping[str, float | None]) -> RenderableType:
    """Show runs, one a line, with the most memory that each held, by their ids."""
    if not runs:
        return Text("No run is in the store. Start one with: penstock run SCRIPT.py")
    more = "held " * any(memory.values()) + "tags" * any(run.tags for run in runs)
    return _table(
        [(run, None) for run in runs], f"id name group mode status exit began seconds {more}", memory=memory
    )


def ended_table(store: Store, runs: Sequence[RunRecord]) -> RenderableType:
    """Show how runs ended, and what part of their time they waited for data."""
    series = {run.id: store.series(run.id, "feed.wait_s".__eq__).get("feed.wait_s") for run in runs}
    waited = {
        run.id: (found.last or 0.0) / run.seconds for run in runs if run.seconds and (found := series[run.id])
    }
    columns = f"id name status exit seconds {'waits ' * bool(waited)}reason"
    return _table([(run, None) for run in runs], columns, waited=waited)


def how_it_went(store: Store, run: RunRecord) -> str:
    """Return in a line how a run ended, what to change first, and where more is told."""
    ended = f"run {run.id}: {run.status.replace('_', ' ')}"
    if run.status not in ("finished", "failed") or run.reason.startswith("died of "):
        ended += f": {run.reason}"
    elif run.exit_code:
        ended += f", exit code {run.exit_code}"
    if run.seconds is not None:
        ended += f", after {run.seconds:,.1f} s"
    advice = group_figures([run], lambda each: store.series(each.id)).advice if run.began is not None else {}
    told = f"It {advice[run.id].text}. " if run.id in advice else ""
    return f"{ended}. {told}More: penstock runs show {run.id}"


def status_text(run: RunRecord) -> Text:
    return Text(run.status, style=_STYLES.get(run.status, "bold red"))


def began_text(run: RunRecord) -> str:
    return "" if run.began is None else f"{datetime.fromtimestamp(run.began):%m-%d %H:%M:%S}"


_HEADINGS = {
    "cores": "CPU,\ncores",
    "memory": "memory,\nMiB",
    "read": "read,\nMiB/s",
    "waits": "waits\nfor data",
    "held": "MiB held",
}
_ON_NARROW = {"id", "name", "status", "seconds", "waits", "reason", "logged"}
_NUMBERS = {"exit", "began", "seconds", *_HEADINGS}


def _table(
    runs: Sequence[tuple[RunRecord, Glance | None]],
    columns: str,
    brief: bool = False,  # each in one line, however narrow the terminal is
    waited: Mapping[str, float] = {},
    memory: Mapping[str, float | None] = {},
) -> Table:
    names = columns.split() if is_wide() else [name for name in columns.split() if name in _ON_NARROW]
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for name in names:
        heading = _HEADINGS.get(name, f"\n{name}" if "waits" in names else name)
        is_short = name in _NUMBERS or name in {"id", "status"}
        table.add_column(
            heading,
            justify="right" if name in _NUMBERS else "left",
            no_wrap=is_short or brief,
            min_width=max(map(len, heading.split("\n"))) if is_short or not brief else None,
            overflow="ellipsis" if brief else "fold",
        )
    for run, now in runs:
        cells = {name: printable(getattr(run, name)) for name in ("id", "name", "group", "mode", "reason")}
        shown: dict[str, str | Text] = {
            **cells,
            "tags": printable(" ".join(run.tags)),
            "status": status_text(run),
            "exit": "" if run.exit_code is None else str(run.exit_code),
            "began": began_text(run),
            "seconds": _number(run.seconds),
            "held": _mib(memory.get(run.id)),
            **(_doing(run, now) if now else {"waits": _waits(waited.get(run.id))}),
        }
        table.add_row(*(shown[name] for name in names))
    return table


def _doing(run: RunRecord, now: Glance) -> dict[str, str | Text]:
    logged = " ".join(f"{name}={figure_text(value, 4)}" for name, value in sorted(now.logged.items())[:4])
    if run.status != "running":
        return {"cores": "", "memory": "", "read": "", "waits": "", "logged": printable(logged)}
    return {
        "cores": _number(now.cores, ".2f"),
        "memory": _mib(now.memory_bytes),
        "read": _number(None if now.read_bytes_per_s is None else now.read_bytes_per_s / 2**20),
        "waits": _waits(now.waiting),
        "logged": printable(logged),
    }


def _mib(nbytes: float | None) -> str:
    return _number(None if nbytes is None else nbytes / 2**20, ",.0f" if (nbytes or 0) >= 10 * 2**20 else ",.1f")


def _waits(part: float | None) -> Text:
    return Text(_number(part, ".0%"), "bold yellow" if (part or 0) >= MUCH_WAITING else "")


def figure_text(value: float, digits: int) -> str:
    """Return a number with this many digits; a whole number with all its digits."""
    return f"{value:,.0f}" if value.is_integer() and abs(value) < 2**53 else f"{value:,.{digits}g}"


def comparison_table(groups: Sequence[GroupFigures]) -> Table:
    """Show groups beside each other."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column()
    for group in groups:
        table.add_column(f"{printable(group.name)}\n{group.mode}", justify="right")
    for heading, figure in _FIGURES.items():
        cells = [figure(group) for group in groups]
        if any(cells):
            table.add_row(Text(heading, "dim"), *cells)
    return table


def comparison_page(comparison: Comparison) -> RenderableType:
    """Show groups beside each other, where the time of each run goes, and the conclusions."""
    below = [comparison.groups] if is_wide() else [[group] for group in comparison.groups]
    page: list[RenderableType] = [*map(comparison_table, below), Text()]
    runs = [(group, run) for group in comparison.groups for run in group.runs if run.parts.waiting is not None]
    if runs:
        page += [parts_table([(f"{group.name} ({group.mode})", run) for group, run in runs]), Text()]
    return Group(*page, *(Text(f"- {printable(sentence)}", "bold green") for sentence in comparison.sentences))


def parts_table(runs: Sequence[tuple[str, RunFigures]]) -> Table:
    """Show where the time of each run goes; runs come with the names of their groups."""
    if not is_wide():
        table = plain_table("run", "waits", "copies", "computes")
        for group, run in runs:
            shares = (run.parts.waiting, run.parts.copying, run.parts.computing)
            table.add_row(printable(f"{run.name} of {group}"), *(_number(share, ".0%") for share in shares))
        return table
    table = plain_table("group", "run", "starts", "waits for data", "copies", "computes", "other", texts=2)
    for group, run in runs:
        parts = run.parts
        shares = (parts.starting, parts.waiting, parts.copying, parts.computing, parts.other)
        table.add_row(printable(group), printable(run.name), *(_number(share, ".0%") for share in shares))
    return table


def _number(value: float | None, form: str = ",.1f") -> str:
    return "" if value is None else format(value, form)


def _energy(group: GroupFigures) -> str:
    """Show what the devices measured, else "about" and the estimate."""
    if group.energy_measured_j:
        return f"{sum(group.energy_measured_j.values()):,.0f}"
    return "" if group.energy_estimated_j is None else f"about {group.energy_estimated_j:,.0f}"


_FIGURES: dict[str, Callable[[GroupFigures], str]] = {
    "runs": lambda group: str(len(group.runs)),
    "all, seconds": lambda group: _number(group.seconds),
    "each run, seconds": lambda group: _number(group.each_s),
    "each epoch, seconds": lambda group: _number(group.epoch_s, ",.2f"),
    "samples/s, all": lambda group: _number(group.samples_per_s, ",.0f"),
    "batches/s, all": lambda group: _number(group.batches_per_s),
    "CPU, seconds": lambda group: _number(group.cpu_s),
    "of that its feeds, seconds": lambda group: _number(group.feed_cpu_s),
    "CPUs busy, all programs": lambda group: _number(group.cpus_busy, ".0%"),
    "energy, joules": _energy,
    "memory at most, MiB": lambda group: _mib(group.memory_bytes),
    "CO2, grams (estimate)": lambda group: _number(group.gco2_estimated),
    "waits for data, worst run": lambda group: _number(
        max((run.parts.waiting for run in group.runs if run.parts.waiting is not None), default=None), ".0%"
    ),
}


_LINES_BESIDE = 3  # headings, and the number of hidden runs


class Looks:
    """Looks at runs; each time it reads only the new points of their series."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recent: dict[str, Recent] = {}

    def _at(self, runs: Sequence[RunRecord]) -> list[tuple[RunRecord, Glance]]:
        """Return runs with what they do."""
        found: list[tuple[RunRecord, Glance]] = []
        for run in runs:
            if run.id not in self._recent:
                self._recent[run.id] = Recent(self._store.folder_of(run.id), RECENT_S)
            found.append((run, glance(self._recent[run.id].look(is_glanced_at))))
        return found

    def table(self, group: str | None = None, status: str | None = None) -> RenderableType:
        """Show the runs that go on, or those of a status; of all groups, or of those of this name or id."""
        runs = self._store.runs(group)
        wanted = [run for run in runs if (run.status == status if status else run.status not in ENDED)]
        if not wanted:
            return Text("No run goes on. Start one with: penstock run SCRIPT.py")
        return _table(self._at(wanted), "id name group mode status seconds cores memory read waits logged")

    def lines(self, ids: Sequence[str]) -> list[str]:
        """Show runs in at most half of the terminal's lines: first those that go on."""
        shown = sized_console()
        wanted = set(ids)
        runs = [run for run in self._store.runs() if run.id in wanted]  # without those that were removed
        most = max(1, shown.height // 2 - _LINES_BESIDE)
        going_on_first = sorted(runs, key=lambda run: (run.status in ENDED, run.status == "waiting"))
        chosen = {run.id for run in (runs if len(runs) <= most else going_on_first[:most])}
        with shown.capture() as captured:
            looks = self._at([run for run in runs if run.id in chosen])
            shown.print(_table(looks, "name status seconds waits cores memory logged", brief=True))
            if hidden := len(runs) - len(chosen):
                shown.print(f"… and {hidden} more", style="dim")
        return captured.get().splitlines()
