"""What a training script calls: it asks what to train on, and reports the losses of its samples."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.basics.sizes import whole_number
from penstock.basics.tracebacks import users_stacklevel
from penstock.errors import BadSetting
from penstock.runs.inside.run import current_run
from penstock.runs.machine import describe
from penstock.select.choices import stratified, top
from penstock.select.identity import DataIdentity, Direction, ScoresHeader, identity_of
from penstock.select.meter import Cost
from penstock.select.scores import Scores
from penstock.subsets.infobatch import InfoBatch, of_all_ranks
from penstock.subsets.policy import Fixed, Policy, RandomSubsets, finite, ids_of_report

_NOTE = "training-plan-asked"
ASKED = "select."
"""Prefix of the parameters in which ``penstock select bench`` gives its runs what to train on."""


class TrainingPlan(NamedTuple):
    """What to train on.

    Attributes:
        policy: Selects the samples of each epoch, for ``SelectionSampler`` or ``select=``.
        epochs: Number of epochs, over which the learning rate should decay.
        seed: Random seed of the training.
        choosing: Whether method and fraction are chosen by what the run logs: let it evaluate other samples than
            those that it trains on, and than the tests', which fresh seeds alone may see.

    Examples:
        >>> plan = penstock.select.plan_of_run(1000, 10)
        >>> sampler = penstock.SelectionSampler(plan.policy)
        >>> len(sampler)
        1000
    """

    policy: Policy
    epochs: int
    seed: int
    choosing: bool = False


def plan_of_run(
    samples: int, epochs: int, *, labels: npt.ArrayLike | None = None, data: Any = None, seed: int = 0
) -> TrainingPlan:
    """Return what this process's run trains on; all samples if no ``select bench`` started it.

    Args:
        samples: Size of the data set.
        epochs: Epochs of a training on all samples.
        labels: The class of each sample, shape ``(samples,)``, for arms that choose ``by: class``.
        data: The map-style data set, so that scores of other data are refused; unless given, its size is compared.
        seed: Random seed outside of ``select bench``.

    Raises:
        BadSetting: the scores are of other data, or ``labels`` are needed.

    Examples:
        >>> plan = penstock.select.plan_of_run(1000, 10)
        >>> plan.epochs, len(plan.policy.selection(0).ids)
        (10, 1000)
    """
    here = current_run()
    if here is None or f"{ASKED}method" not in here.parameters:
        return TrainingPlan(Fixed(np.ones(samples, np.bool_)), epochs, seed)
    (here.folder / _NOTE).touch()
    asked = {name.removeprefix(ASKED): text for name, text in here.parameters.items() if name.startswith(ASKED)}
    method, fraction, seed = asked["method"], float(asked["fraction"]), int(here.parameters["seed"])
    if method in ("full", "infobatch"):
        epochs = max(1, round(epochs * fraction))
    if method == "full":
        policy: Policy = Fixed(np.ones(samples, np.bool_))
    elif method == "infobatch":
        policy = InfoBatch(samples, epochs=epochs, seed=seed)
    elif method in ("random", "rs2"):
        policy = RandomSubsets(samples, fraction, seed=seed, fresh=method == "rs2")
    else:
        policy = _scored(asked, samples, fraction, seed, labels, data)
    return TrainingPlan(policy, epochs, seed, "choosing" in asked)


def has_asked(files: Path) -> bool:
    """Whether a run has asked what to train on, from its folder of files."""
    return (files / _NOTE).exists()


def _scored(asked: dict[str, str], samples: int, fraction: float, seed: int, labels: Any, data: Any) -> Policy:
    scores = Scores.read(asked["scores"], data)
    if len(scores) != samples:
        raise BadSetting(f"{asked['scores']} scores {len(scores):,} samples, and the data set has {samples:,}")
    pool = float(asked["pool"])
    if asked["by"] == "class":
        if labels is None:
            raise BadSetting("this arm chooses by class: plan_of_run(..., labels=) needs the class of each sample")
        chosen = stratified(scores, pool, labels)
    else:
        chosen = top(scores, pool)
    return RandomSubsets(chosen, fraction / pool, seed=seed) if pool > fraction else Fixed(chosen)


class ReportedLosses:
    """Takes the losses of a run's samples while it trains, and makes scores of their means.

    Args:
        samples: Size of the data set.

    Raises:
        BadSetting: there is none.

    Attributes:
        counts: How often each sample was reported, shape ``(samples,)``.

    Examples:
        >>> reported = penstock.select.ReportedLosses(3)
        >>> reported.report([0, 1, 2], [0.5, 0.25, 1.0])
        >>> reported.report([0], [0.25])
        >>> reported.scores().values[:, 0].tolist()
        [0.375, 0.25, 1.0]
    """

    def __init__(self, samples: int) -> None:
        self._sums = np.zeros(whole_number("samples", samples, 1))
        self.counts = np.zeros(samples, np.int64)

    def report(self, ids: npt.ArrayLike, losses: npt.ArrayLike) -> None:
        """Take the losses of a batch.

        Args:
            ids: ``loader.ids``, shape ``(n,)``.
            losses: A loss for each, shape ``(n,)``; a tensor, too.

        Raises:
            BadSetting: an id is not in the data set, or a loss is not finite.
        """
        given = ids_of_report(ids, len(self._sums))
        np.add.at(self._sums, given, finite("report: losses", losses, len(given), given))
        np.add.at(self.counts, given, 1)

    def state_dict(self) -> dict[str, Any]:
        """Return what was reported, to be saved beside the model's state."""
        return {"sums": self._sums.tobytes(), "counts": self.counts.tobytes()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state.

        Raises:
            BadSetting: it is no such state, or of another number of samples.
        """
        try:
            sums = np.frombuffer(state["sums"], np.float64).copy()
            counts = np.frombuffer(state["counts"], np.int64).copy()
        except (KeyError, TypeError, ValueError):
            raise BadSetting("this state does not come from the state_dict() of ReportedLosses") from None
        if not len(sums) == len(counts) == len(self._sums):
            raise BadSetting(f"this state is of {len(sums):,} samples, and these are {len(self._sums):,}")
        self._sums, self.counts = sums, counts

    def scores(
        self, data: Any = None, *, direction: Direction = "low", checkpoint: str = "", seed: int = 0
    ) -> Scores:
        """Return the mean loss of each sample that was reported, on several ranks to any of them: all call this.

        A warning counts those that were not. Choices by these scores leave them out.

        Args:
            data: The map-style data set; unless given, only its size will be compared.
            direction: "low" prefers samples that are learnt, and avoids wrong labels; "high" prefers the others.
            checkpoint: Identifies the model, for people.
            seed: Random seed of the run.

        Raises:
            BadSetting: nothing was reported, or the data set has another size.
        """
        ranks = of_all_ranks((self._sums, self.counts))
        sums, counts = (np.sum(each, 0) for each in zip(*ranks, strict=True))
        ids = np.flatnonzero(counts)
        if not ids.size:
            raise BadSetting("no loss was reported: report(loader.ids, losses) after each batch")
        identity = DataIdentity(len(self._sums)) if data is None else identity_of(data)
        if identity.samples != len(self._sums):
            raise BadSetting(
                f"data: {identity.samples:,} samples, and losses were reported of {len(self._sums):,}"
            )
        header = ScoresHeader(
            data=identity,
            ids_digest="",
            method="loss",
            method_version="1",
            checkpoint=checkpoint,
            seed=seed,
            direction=direction,
            cost=Cost(0.0, 0.0, 0.0),
            machine=describe(),
        )
        if missing := len(sums) - len(ids):
            warnings.warn(
                f"no loss was reported of {missing:,} of {len(sums):,} samples: a choice by these scores, and its "
                "fraction, is of the others",
                stacklevel=users_stacklevel(),
            )
        return Scores(ids, sums[ids] / counts[ids], header)
