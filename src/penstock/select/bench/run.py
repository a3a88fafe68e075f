"""Runs a comparison: scores and trainings as runs of the store; what has run already is not run again."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from penstock.errors import BadSetting
from penstock.runs.figures import run_figures
from penstock.runs.launch.groups import GroupsInTurn
from penstock.runs.launch.secrets import add_masked
from penstock.runs.machine import Machine, describe
from penstock.runs.record import GroupPlan, RunPlan, RunRecord
from penstock.runs.store import Store
from penstock.select.bench.spec import UNSCORED, Comparison, Spec
from penstock.select.meter import J_PER_WH
from penstock.select.of_run import ASKED
from penstock.select.used import has_asked


class Trial(msgspec.Struct, frozen=True, order=True):
    """One scoring or one training: what it is known by.

    Attributes:
        arm: Place of the arm in the spec's.
        fraction: Of the training; 0 for the scoring.
        seed: Random seed.
    """

    arm: int
    fraction: float
    seed: int

    def key(self, spec: Spec) -> str:
        """Return what it is called in the file of results, whatever arms are added to the spec later."""
        arm = spec.arms[self.arm]
        if not self.fraction:
            return f"scores of {arm.scores}, seed {self.seed}"
        return f"{arm.method} {self.fraction:g} ({arm.differs}), seed {self.seed}"


class Outcome(msgspec.Struct, frozen=True):
    """What a run took and brought.

    Attributes:
        run: Its id in the store.
        seconds: Time on the clock.
        cpu_s: CPU time.
        wh: Energy, estimated from counters; None without.
        metric: What it logged last; None for a scoring.
    """

    run: str
    seconds: float
    cpu_s: float
    wh: float | None
    metric: float | None


class Results(msgspec.Struct):
    """All that a comparison has found so far; the file that it goes on from.

    Attributes:
        code: Digests of the scripts, by name.
    """

    spec: Spec
    code: dict[str, str]
    machine: Machine
    outcomes: dict[str, Outcome] = {}


class Bench:
    """Runs what is missing of a comparison.

    Args:
        comparison: What is compared.
        folder: Where scores and results are kept.
        store: Where runs are kept.
        tell: Told what is run now, how many of the runs have ended, and how many there are.
        again: Whether to replace results of scripts that have changed since; otherwise they are refused.
    """

    def __init__(
        self,
        comparison: Comparison,
        folder: Path,
        store: Store,
        tell: Callable[[str, int, int], None],
        *,
        again: bool = False,
    ) -> None:
        self._comparison = comparison
        self._folder = folder
        self._store = store
        self._tell = tell
        self.results = _read(folder / "results.json", comparison, again=again)

    def run(self, arms: Sequence[tuple[int, float]], seeds: Sequence[int]) -> None:
        """Run the scorings and trainings of arms, each with all seeds.

        Raises:
            BadSetting: one failed, or logged nothing.
        """
        spec = self.results.spec
        scored = sorted({arm for arm, _ in arms if spec.arms[arm].method not in UNSCORED})
        trials = [Trial(arm, 0.0, seed) for arm in scored for seed in seeds]
        trials += [Trial(arm, fraction, seed) for arm, fraction in arms for seed in seeds]
        trials = list({trial.key(spec): trial for trial in trials}.values())  # arms may have scores in common
        missing = [trial for trial in trials if trial.key(spec) not in self.results.outcomes]
        total = len(trials)
        for together in _chunks(missing, spec.together):
            done = sum(trial.key(spec) in self.results.outcomes for trial in trials)
            numbers = ", ".join(str(trial.seed) for trial in together)
            named = f"{_what(spec, together[0])}, seed{'s' * (len(together) > 1)} {numbers}"
            self._tell(named, done, total)
            self._run_together(together)
        self._tell("", total, total)

    def save(self) -> None:
        """Write the file of results."""
        written = self._folder / "results.json.part"
        written.write_bytes(msgspec.json.format(msgspec.json.encode(self.results)) + b"\n")
        written.replace(self._folder / "results.json")

    def _run_together(self, trials: Sequence[Trial]) -> None:
        spec = self.results.spec
        plans = tuple(self._plan(trial) for trial in trials)
        group = f"{spec.name}/{_what(spec, trials[0])}"
        records = add_masked(self._store, GroupPlan(name=group, mode="plain", runs=plans))
        ended = GroupsInTurn(self._store, [records], listeners=[None]).run()
        try:
            for trial, record in zip(trials, ended, strict=True):
                if record.status == "finished":
                    self.results.outcomes[trial.key(spec)] = self._outcome(trial, record)
        finally:
            self.save()
        for record in ended:
            if record.status != "finished":
                raise BadSetting(
                    f"run {record.id} ({record.name}) ended as {record.status}: "
                    f"{record.reason or 'no reason known'}. See penstock runs show {record.id}; start the "
                    "comparison again, and it goes on from here"
                )

    def _plan(self, trial: Trial) -> RunPlan:
        spec, arm = self.results.spec, self.results.spec.arms[trial.arm]
        scores = self._folder.absolute() / "scores" / f"{arm.scores}-{trial.seed}.parquet"
        name, directory = _name(spec, trial), str(self._comparison.directory)
        if not trial.fraction:
            words = [sys.executable, "-m", "penstock", "select", "score", spec.task, "--method", arm.method]
            words += ["--seed", str(trial.seed), "--out", str(scores), "--replace"]
            words += [word for name, value in arm.settings.items() for word in ("--set", f"{name}={value}")]
            return RunPlan(command=tuple(words), name=name, directory=directory)
        asked = {"method": arm.method, "fraction": f"{trial.fraction:g}"}
        if arm.method not in UNSCORED:
            asked |= {"scores": str(scores), "pool": f"{arm.pool or trial.fraction:g}", "by": arm.by}
        if spec.fresh_seeds and trial.seed in spec.seeds:
            asked["choosing"] = "yes"
        parameters = {"seed": str(trial.seed)} | {f"{ASKED}{key}": value for key, value in asked.items()}
        return RunPlan(command=self._comparison.words, name=name, directory=directory, parameters=parameters)

    def _outcome(self, trial: Trial, record: RunRecord) -> Outcome:
        series = self._store.series(record.id)
        figures = run_figures(record, series)
        metric = series[self.results.spec.metric].last if self.results.spec.metric in series else None
        if trial.fraction and not has_asked(self._store.folder_of(record.id) / "files"):
            raise BadSetting(
                f"run {record.id} ({record.name}) has not asked what to train on: the script must call "
                "penstock.select.plan_of_run(...), and train on the samples of its policy"
            )
        if trial.fraction and metric is None:
            raise BadSetting(
                f"run {record.id} ({record.name}) has logged no {self.results.spec.metric}: the script must call "
                f"penstock.log({self.results.spec.metric}=...) at its end"
            )
        if metric is not None and not math.isfinite(metric):
            raise BadSetting(f"run {record.id} ({record.name}) has logged {metric} as {self.results.spec.metric}")
        joules = figures.energy_estimated_j
        wh = None if joules is None else joules / J_PER_WH
        return Outcome(record.id, figures.seconds, figures.cpu_s or 0.0, wh, metric)


def arms_of(spec: Spec) -> list[tuple[int, float]]:
    """Return each arm with each of its fractions."""
    return [(place, fraction) for place, arm in enumerate(spec.arms) for fraction in arm.fractions]


def label(spec: Spec, arm: int, fraction: float) -> str:
    """Return what an arm with a fraction is called; with its place where several have the method."""
    its = spec.arms[arm]
    same = [place for place, other in enumerate(spec.arms) if other.method == its.method]
    which = f" ({its.differs})" if len(same) > 1 and its.differs else ""
    return f"{its.method} {100 * fraction:g}%{which}"


def _what(spec: Spec, trial: Trial) -> str:
    return label(spec, trial.arm, trial.fraction) if trial.fraction else f"scores of {spec.arms[trial.arm].method}"


def _name(spec: Spec, trial: Trial) -> str:
    return f"{_what(spec, trial)}, seed {trial.seed}"


def _chunks(trials: Sequence[Trial], size: int) -> Iterator[Sequence[Trial]]:
    """Yield trials of one arm that run at the same time.

    Arms take turns, so that what else the machine does meets them alike; of the same seeds, scorings come before
    trainings, which need them.
    """
    seeds = list(dict.fromkeys(trial.seed for trial in trials))
    for start in range(0, len(seeds), size):
        these = [trial for trial in trials if trial.seed in seeds[start : start + size]]
        for place in sorted({(trial.fraction > 0, trial.arm, trial.fraction) for trial in these}):
            yield [trial for trial in these if (trial.fraction > 0, trial.arm, trial.fraction) == place]


def _read(path: Path, comparison: Comparison, *, again: bool) -> Results:
    """Return what a comparison has found before, as far as it was run by the same code.

    Raises:
        BadSetting: some was run by other code, and is not to run again.
    """
    spec, code = comparison.spec, comparison.code()
    if not path.exists():
        return Results(spec, code, describe())
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Results)
    except msgspec.DecodeError as error:
        raise BadSetting(f"{path} holds no results of this version: {error}. Give another folder") from None
    differs = [name for name in ("task", "train", "metric") if getattr(found.spec, name) != getattr(spec, name)]
    differs += [name for name in code if found.code.get(name, code[name]) != code[name]]
    scores = {key: each for key, each in found.outcomes.items() if each.metric is None}
    kept = scores if set(differs) <= {"train", "metric", comparison.training_script} else {}
    if differs and len(kept) < len(found.outcomes) and not again:
        what = "the training runs, and keeps the scores" if kept else "everything"
        raise BadSetting(
            f"{path} holds results of another {', another '.join(differs)}: give another folder, or --again, "
            f"which runs anew {what}"
        )
    return Results(spec, found.code | code, found.machine, kept if differs else found.outcomes)
