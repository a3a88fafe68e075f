"""Runs a comparison: scores and trainings as runs of the store; finished runs are not repeated."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from penstock.basics.results import Tell, as_json
from penstock.bench.experiment import Report
from penstock.errors import BadSetting
from penstock.linux.files import written_whole
from penstock.runs.figures import run_figures
from penstock.runs.launch.groups import GroupsInTurn
from penstock.runs.machine import describe
from penstock.runs.masking import add_masked
from penstock.runs.record import GroupPlan, RunPlan, RunRecord
from penstock.runs.store import Store
from penstock.select.bench.spec import UNSCORED, BenchSpec, MethodComparison
from penstock.select.in_training import ASKED, has_asked
from penstock.select.meter import J_PER_WH


class Outcome(msgspec.Struct, frozen=True):
    """What a run cost and reached."""

    run: str  # its id in the store
    seconds: float  # time on the clock
    cpu_s: float  # CPU time
    wh: float | None  # energy, estimated from counters; None without
    metric: float | None  # what it logged last; None for a scoring


class BenchResults(Report[BenchSpec, Outcome]):
    """All results of a comparison so far: trainings and scorings by seed; the file from which it goes on."""

    code: dict[str, str]  # digests of the scripts, by name


def scoring(spec: BenchSpec, arm: int) -> str:
    """Return the name of an arm's scores in the results; several arms may share it."""
    return f"scores of {spec.arms[arm].scores}"


def training(spec: BenchSpec, arm: int, fraction: float) -> str:
    """Return the name of an arm with a fraction in the results, which arms that are added later do not change."""
    its = spec.arms[arm]
    return f"{its.method} {fraction:g} ({its.differs})"


class Bench:
    """Runs the missing runs of a comparison.

    With ``again``, results of scripts that have changed since are replaced; otherwise they are refused.
    """

    def __init__(
        self, comparison: MethodComparison, folder: Path, store: Store, tell: Tell, *, again: bool = False
    ) -> None:
        self._comparison = comparison
        self._folder = folder  # where scores and results lie
        self._store = store
        self._tell = tell
        self.results = _read(folder / "results.json", comparison, again=again)

    def run(self, arms: Sequence[tuple[int, float]], seeds: Sequence[int]) -> None:
        """Run the trainings of arms, each with all seeds, and before them the scorings that they need."""
        spec = self.results.settings
        trainings = {training(spec, *each): partial(self._train, *each, seeds) for each in arms}
        self.results.measure(trainings, seeds, self._tell, self.save)

    def save(self) -> None:
        """Write the file of results."""
        with written_whole(self._folder / "results.json") as half:
            half.write_bytes(as_json(self.results))

    def _train(self, arm: int, fraction: float, seeds: Sequence[int], seed: int) -> Outcome:
        """Train with a seed, and with the seeds that run together with it."""
        spec = self.results.settings
        first = seeds.index(seed) // spec.together * spec.together
        together = seeds[first : first + spec.together]
        if spec.arms[arm].method not in UNSCORED:
            self._run_together(scoring(spec, arm), arm, 0.0, together)
        self._run_together(training(spec, arm, fraction), arm, fraction, together)
        return self.results.of(training(spec, arm, fraction))[seed]

    def _run_together(self, name: str, arm: int, fraction: float, seeds: Sequence[int]) -> None:
        """Run the missing trainings of these seeds, or for fraction 0 their scorings."""
        spec = self.results.settings
        seeds = [seed for seed in seeds if seed not in self.results.of(name)]
        if not seeds:
            return
        group = f"{spec.name}/{label(spec, arm, fraction)}"
        plans = tuple(self._plan(arm, fraction, seed) for seed in seeds)
        records = add_masked(self._store, GroupPlan(name=group, mode="plain", runs=plans))
        ended = GroupsInTurn(self._store, [records], listeners=[None]).run()
        try:
            for seed, record in zip(seeds, ended, strict=True):
                if record.status == "finished":
                    self.results.add(name, seed, self._outcome(fraction, record))
        finally:
            self.save()
        for record in ended:
            if record.status != "finished":
                raise BadSetting(
                    f"run {record.id} ({record.name}) ended as {record.status}: "
                    f"{record.reason or 'no reason known'}. See penstock runs show {record.id}; start the "
                    "comparison again, and it goes on from here"
                )

    def _plan(self, arm: int, fraction: float, seed: int) -> RunPlan:
        spec, its = self.results.settings, self.results.settings.arms[arm]
        scores = self._folder.absolute() / "scores" / f"{its.scores}-{seed}.parquet"
        name, directory = f"{label(spec, arm, fraction)}, seed {seed}", str(self._comparison.directory)
        if not fraction:
            words = [sys.executable, "-m", "penstock", "select", "score", spec.task, "--method", its.method]
            words += ["--seed", str(seed), "--out", str(scores), "--replace"]
            words += [word for name, value in its.settings.items() for word in ("--set", f"{name}={value}")]
            return RunPlan(command=tuple(words), name=name, directory=directory)
        asked = {"method": its.method, "fraction": f"{fraction:g}"}
        if its.method not in UNSCORED:
            asked |= {"scores": str(scores), "pool": f"{its.pool or fraction:g}", "by": its.by}
        if spec.fresh_seeds and seed in spec.seeds:
            asked["choosing"] = "yes"
        parameters = {"seed": str(seed)} | {f"{ASKED}{key}": value for key, value in asked.items()}
        return RunPlan(command=self._comparison.words, name=name, directory=directory, parameters=parameters)

    def _outcome(self, fraction: float, record: RunRecord) -> Outcome:
        series = self._store.series(record.id)
        figures, name = run_figures(record, series), self.results.settings.metric
        metric = series[name].last if name in series else None
        if fraction and not has_asked(self._store.folder_of(record.id) / "files"):
            raise BadSetting(
                f"run {record.id} ({record.name}) has not asked what to train on: the script must call "
                "penstock.select.plan_of_run(...), and train on the samples of its policy"
            )
        if fraction and metric is None:
            raise BadSetting(
                f"run {record.id} ({record.name}) has logged no {name}: the script must call "
                f"penstock.log({name}=...) at its end"
            )
        if metric is not None and not math.isfinite(metric):
            raise BadSetting(f"run {record.id} ({record.name}) has logged {metric} as {name}")
        joules = figures.energy_estimated_j
        wh = None if joules is None else joules / J_PER_WH
        return Outcome(record.id, figures.seconds, figures.cpu_s or 0.0, wh, metric)


def arms_of(spec: BenchSpec) -> list[tuple[int, float]]:
    """Return each arm with each of its fractions."""
    return [(place, fraction) for place, arm in enumerate(spec.arms) for fraction in arm.fractions]


def label(spec: BenchSpec, arm: int, fraction: float) -> str:
    """Return a label of an arm with a fraction, 0 for its scores, that no other arm of the spec has."""
    its = spec.arms[arm]
    if not fraction:
        return f"scores of {its.method}"
    same = [place for place, other in enumerate(spec.arms) if other.method == its.method]
    which = f" ({its.differs})" if len(same) > 1 and its.differs else ""
    return f"{its.method} {100 * fraction:g}%{which}"


def _read(path: Path, comparison: MethodComparison, *, again: bool) -> BenchResults:
    """Return the earlier results of a comparison that were run by the same code."""
    spec, code = comparison.spec, comparison.code()
    results = BenchResults(benchmark="select bench", machine=describe(), settings=spec, code=code)
    if not path.exists():
        return results
    try:
        found = msgspec.json.decode(path.read_bytes(), type=BenchResults)
    except msgspec.DecodeError as error:
        raise BadSetting(f"{path} holds no results of this version: {error}. Give another folder") from None
    differs = [
        name for name in ("task", "train", "metric") if getattr(found.settings, name) != getattr(spec, name)
    ]
    differs += [name for name in code if found.code.get(name, code[name]) != code[name]]
    scores = [each for each in found.results if each.figures.metric is None]
    left = scores if set(differs) <= {"train", "metric", comparison.training_script} else []
    if differs and len(left) < len(found.results) and not again:
        what = "the training runs, and keeps the scores" if left else "everything"
        raise BadSetting(
            f"{path} holds results of another {', another '.join(differs)}: give another folder, or --again, "
            f"which runs anew {what}"
        )
    results.code = found.code | code
    results.machine = found.machine
    results.results = left if differs else found.results
    return results
