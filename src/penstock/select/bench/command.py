"""``penstock select bench``: runs a comparison, and shows and saves what it says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from penstock.basics.terminal import printable
from penstock.linux.files import held
from penstock.runs.store import Store
from penstock.select.bench.picture import save_picture
from penstock.select.bench.report import RUNS, Report, Row, baselines_of, choose, full_of, paired, rows_of
from penstock.select.bench.run import Bench, arms_of, label
from penstock.select.bench.spec import Comparison


def compare_methods(
    comparison: Comparison, folder: Path, store: Store, console: Console, *, again: bool = False
) -> Report:
    """Run what is missing, show a table, and save JSON and picture.

    On fresh seeds, the choice runs beside full, InfoBatch, ``random`` at its fraction, and RS2 and full for fewer
    epochs at its cost, selection included.

    Raises:
        BadSetting: a run failed; or the folder holds another comparison, and ``again`` is false.
    """
    with held(folder, "results", "comparing in"):
        return _compare(comparison, folder, store, console, again)


def _compare(comparison: Comparison, folder: Path, store: Store, console: Console, again: bool) -> Report:
    spec = comparison.spec
    full = full_of(spec)

    def tell(what: str, done: int, total: int) -> None:
        if what:
            console.print(f"[{done:,} of {total:,}] {printable(what)}", style="dim", soft_wrap=True, markup=False)

    bench = Bench(comparison, folder, store, tell, again=again)
    arms = arms_of(spec)
    bench.run(arms, spec.seeds)
    rows = rows_of(bench.results, arms, spec.seeds)
    report = Report(spec.name, spec.metric, bench.results.machine, spec.budget, "", rows, [], {})
    if spec.fresh_seeds:
        chosen = choose(bench.results)
        (its,) = (row for row in report.on_seeds if (row.arm, row.fraction) == chosen)
        baselines = baselines_of(spec, chosen[1], its.cost[1])
        beside = list(dict.fromkeys([full, chosen, *baselines]))
        bench.run(beside, spec.fresh_seeds)
        report.chosen = label(spec, *chosen)
        report.on_fresh_seeds = rows_of(bench.results, beside, spec.fresh_seeds)
        its, *others = sorted(report.on_fresh_seeds, key=lambda row: (row.arm, row.fraction) != chosen)
        report.against = {row.label: paired(its, row) for row in others}
    (folder / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    save_picture(report, bench.results, folder / "picture.png")
    for row in shown(report):
        console.print(row, soft_wrap=True)
    console.print(f"saved: {printable(str(folder))}: results.json, report.json, picture.png", soft_wrap=True)
    return report


def shown(report: Report) -> Iterator[Table | str]:
    """Yield a table of all arms, one of the choice on fresh seeds, and sentences."""
    yield _table(report.on_seeds, report.metric, "All arms, on the seeds that the choice is made on")
    if report.chosen:
        [cost] = (row.cost[1] for row in report.on_seeds if row.label == report.chosen)
        within = (
            ""
            if cost <= report.budget
            else f" (the cheapest: nothing with scores costs at most {report.budget:g})"
        )
        yield _table(report.on_fresh_seeds, report.metric, f"{report.chosen}{within}, on fresh seeds")
        for name, above in report.against.items():
            told = "" if above.least > 0 or above.most < 0 else ": these seeds do not tell them apart"
            yield (
                f"{report.chosen} against {name}, seed by seed, median (least to most): {above.median:+.2f} "
                f"({above.least:+.2f} to {above.most:+.2f}){told}"
            )


def _table(rows: list[Row], metric: str, title: str) -> Table:
    runs = ", ".join(map(str, RUNS))
    title += f". Cost: CPU time relative to all data, where {runs} runs share the scores"
    table = Table(box=None, pad_edge=False, header_style="dim", title=title, title_justify="left")
    table.add_column("arm", overflow="fold")
    headings = (metric, "least", "most", "CPU-s", "scoring", *(f"of {runs}" for runs in RUNS), "paid after")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            printable(row.label),
            *(f"{value:.2f}" for value in (row.metric.median, row.metric.least, row.metric.most)),
            f"{row.training_cpu_s:,.1f}",
            f"{row.scoring_cpu_s:,.1f}" if row.scoring_cpu_s else "",
            *(f"{cost:.2f}" for cost in row.cost.values()),
            {None: "never", 0: "", 1: "1 run"}.get(row.pays_after, f"{row.pays_after} runs"),
        )
    return table
