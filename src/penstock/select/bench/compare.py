"""``penstock select bench``: runs a comparison, shows its results, and saves them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.basics.results import as_json, results_table
from penstock.basics.terminal import printable
from penstock.linux.files import held
from penstock.runs.store import Store
from penstock.select.bench.report import RUNS, ArmRow, SelectReport, baselines_of, choose, full_of, paired, rows_of
from penstock.select.bench.run import Bench, BenchResults, arms_of, label
from penstock.select.bench.spec import UNSCORED, MethodComparison
from penstock.select.meter import J_PER_WH


def compare_methods(
    comparison: MethodComparison, folder: Path, store: Store, console: Console, *, again: bool = False
) -> None:
    """Run what is missing, show a table, and save JSON and picture.

    On fresh seeds, the choice runs beside full, InfoBatch, ``random`` at its fraction, and RS2 and full for fewer
    epochs at its cost, selection included.
    """
    with held(folder, "results", "comparing in"):
        spec = comparison.spec
        full = full_of(spec)

        def tell(done: int, total: int, what: str) -> None:
            console.print(f"[{done:,} of {total:,}] {printable(what)}", style="dim", soft_wrap=True, markup=False)

        bench = Bench(comparison, folder, store, tell, again=again)
        arms = arms_of(spec)
        bench.run(arms, spec.seeds)
        rows = rows_of(bench.results, arms, spec.seeds)
        report = SelectReport(spec.name, spec.metric, bench.results.machine, spec.budget, "", rows, [], {})
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
        (folder / "report.json").write_bytes(as_json(report))
        picture(report, bench.results).savefig(folder / "picture.png")
        for row in shown(report):
            console.print(row, soft_wrap=True)
        console.print(f"saved: {printable(str(folder))}: results.json, report.json, picture.png", soft_wrap=True)


def shown(report: SelectReport) -> Iterator[Table | str]:
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
            caveat = "" if above.least > 0 or above.most < 0 else ": these seeds do not separate them"
            yield (
                f"{report.chosen} against {name}, seed by seed, median (least to most): {above.median:+.2f} "
                f"({above.least:+.2f} to {above.most:+.2f}){caveat}"
            )


def _table(rows: list[ArmRow], metric: str, title: str) -> Table:
    runs = ", ".join(map(str, RUNS))
    title += f". Cost: CPU time relative to all data, where {runs} runs share the scores"
    headings = (metric, "least", "most", "CPU-s", "scoring", *(f"of {runs}" for runs in RUNS), "paid after")
    table = results_table("arm", *headings, title=title)
    table.columns[0].overflow = "fold"
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


def picture(report: SelectReport, results: BenchResults) -> Any:
    """Draw all arms, and below them the choice on fresh seeds; faint marks are costs that more runs share.

    The axes are minutes and measured energy; without counters CPU time, since estimated energy is a multiple.
    """
    from penstock.basics.pictures import AFTER, BEFORE, Curve, Mark, Panel, series_picture

    spec, machine = results.settings, results.machine
    measured = all(each.figures.wh is not None for each in results.results)
    measures = ("minutes", "Wh") if measured else (f"CPU-seconds (1 Wh is {J_PER_WH / spec.watts:,.0f} of them)",)

    def series(row: ArmRow, measure: str) -> Curve:
        scoring, training = {
            "minutes": (row.scoring_s / 60, row.training_s / 60),
            "Wh": (row.scoring_wh, row.training_wh),
        }.get(measure, (row.scoring_cpu_s, row.training_cpu_s))
        scored, reached = spec.arms[row.arm].method not in UNSCORED, row.metric
        first = Mark(training + scoring, reached.median, row.label, spread=(reached.least, reached.most))
        shared = [Mark(training + scoring / runs, reached.median) for runs in RUNS[1:]] if scored else []
        return Curve(row.label, AFTER if scored else BEFORE, [first, *shared], faint=True)

    parts = {"all arms": report.on_seeds, "the choice, on fresh seeds": report.on_fresh_seeds}
    panels = [
        Panel(title, [series(row, measure) for row in rows], f"{measure}, selection included", spec.metric)
        for title, rows in parts.items()
        if rows
        for measure in measures
    ]
    where = ", ".join(machine.gpus) or f"{machine.cores} cores of {machine.cpu}"
    about = (
        f"Medians, and the least and most of the seeds. Faint: the selection is shared by {RUNS[1]} and {RUNS[2]} "
        f"runs.\n{where}, {machine.date[:10]}."
    )
    return series_picture(f"{spec.name}: {spec.metric} against cost", about, panels, columns=len(measures))
