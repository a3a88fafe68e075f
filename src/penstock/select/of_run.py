"""What a run of ``penstock select bench`` trains on."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import BadSetting
from penstock.runs.inside.run import current_run
from penstock.select.choose import stratified, top
from penstock.select.scores import Scores
from penstock.select.used import note_asked
from penstock.subsets.infobatch import InfoBatch
from penstock.subsets.policy import Fixed, Policy, RandomSubsets

ASKED = "select."
"""Begins the names of parameters by which ``penstock select bench`` tells its runs what to train on."""


class TrainingPlan(NamedTuple):
    """What to train on.

    Attributes:
        policy: Says which samples each epoch holds, for ``SelectionSampler`` or ``select=``.
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
    """Return what the run trains on that this process belongs to; all samples if no ``select bench`` started it.

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
    note_asked()
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
