"""Policies: which samples each epoch holds."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from penstock.basics.sizes import random_seed, whole_number
from penstock.contracts import Ids
from penstock.errors import BadSetting
from penstock.sources.order import digest, permutation
from penstock.subsets.selection import Selection, selection_of


class Policy:
    """Decides which samples an epoch holds, and with which weights. ``select=`` and ``SelectionSampler`` take one.

    Attributes:
        digest: Digest of what decides it, without what was reported.
        fixed: Whether it selects the same in each epoch.

    Examples:
        >>> class EveryOther(penstock.select.Policy):
        ...     digest = "every other of 10"
        ...
        ...     def selection(self, epoch):
        ...         return penstock.Selection(range(epoch % 2, 10, 2))
        >>> EveryOther().selection(1).ids.tolist()
        [1, 3, 5, 7, 9]
    """

    digest: str
    fixed: bool = False

    def selection(self, epoch: int) -> Selection:
        """Return the samples of an epoch, counted from 0; until the next epoch, it returns the same."""
        raise NotImplementedError

    def report(self, ids: npt.ArrayLike, losses: npt.ArrayLike) -> None:
        """Take the losses of samples that were just trained on; most policies need none.

        Args:
            ids: Their ids, shape ``(n,)``: ``loader.ids``.
            losses: Their losses before any weight, shape ``(n,)``; tensors too.
        """

    def check_ranks(self, ranks: int) -> None:
        """Check, as an epoch begins, that this number of ranks will all decide alike.

        Raises:
            BadSetting: they will not.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what was reported and decided, to be saved beside the model's state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state.

        Raises:
            BadSetting: it is no state of such a policy.
        """


class Fixed(Policy):
    """One selection for all epochs.

    Args:
        samples: What ``Selection`` takes.

    Raises:
        BadSetting: it is none.

    Examples:
        >>> penstock.select.Fixed([1, 2, 3]).selection(epoch=7).ids.tolist()
        [1, 2, 3]
    """

    def __init__(self, samples: Any) -> None:
        self._selection = Selection(samples)
        self.digest = self._selection.digest
        self.fixed = True

    def selection(self, epoch: int) -> Selection:
        return self._selection


class RandomSubsets(Policy):
    """A random part of the samples, afresh in each epoch: RS2, the baseline that a method has to beat.

    Consecutive epochs share one random order for as long as it lasts, so that with a fraction of 1/2 every two
    epochs hold each sample once (RS2 without replacement). Let the learning rate decay over the smaller number of
    steps.

    Source: Okanovic et al., Repeated Random Sampling for Minimizing the Time-to-Accuracy of Learning (2305.18424).

    Args:
        samples: Size of the data set, or what ``Selection`` takes: a part of it that is drawn from.
        fraction: Part of them that an epoch holds, above 0, at most 1.
        seed: Random seed of the draws.
        fresh: False draws once, for all epochs: plain random selection.

    Raises:
        BadSetting: ``samples`` is no selection, or the fraction selects none of them.

    Examples:
        >>> policy = penstock.select.RandomSubsets(1000, 0.5)
        >>> first, second = policy.selection(0), policy.selection(1)
        >>> len(first.ids), penstock.select.overlap(first, second)
        (500, 0.0)
    """

    def __init__(self, samples: Any, fraction: float, *, seed: int = 0, fresh: bool = True) -> None:
        self._pool = pool_of(samples)
        self._take = count_of(fraction, len(self._pool))
        self._seed = random_seed(seed) % 2**64
        self.fixed = not fresh
        self.digest = digest("random", self._pool.digest, self._take, self._seed, fresh)

    def selection(self, epoch: int) -> Selection:
        parts = len(self._pool) // self._take
        drawn, part = divmod(0 if self.fixed else epoch, parts)
        rows = permutation(len(self._pool), self._seed, drawn)[part * self._take : (part + 1) * self._take]
        return self._pool.part(rows)


class TemperatureSampling(Policy):
    """A part of the samples drawn by their scores, afresh in each epoch, without replacement.

    A sample's chance grows with ``exp(z / temperature)``, where z is its score less the mean, by the standard
    deviation. Near 0 the best ones come in every epoch; a high temperature draws evenly.

    Source: Kool et al., Stochastic Beams and Where to Find Them (1903.06059): the Gumbel-top-k trick.

    Args:
        samples: Size of the data set, or what ``Selection`` takes.
        scores: A number for each of them in rising order of their ids, higher for what is worth more; or
            ``Scores`` of one target, whose ids and direction count.
        fraction: Part of them that an epoch holds, above 0, at most 1.
        temperature: Above 0.
        seed: Random seed of the draws.

    Raises:
        BadSetting: a value is out of its range, or a score is missing or not finite.

    Examples:
        >>> policy = penstock.select.TemperatureSampling(1000, np.arange(1000), 0.1, temperature=0.01)
        >>> bool(policy.selection(0).ids.min() >= 890)
        True
    """

    def __init__(
        self, samples: Any, scores: Any, fraction: float, *, temperature: float = 1.0, seed: int = 0
    ) -> None:
        self._pool = pool_of(samples)
        self._take = count_of(fraction, len(self._pool))
        if not temperature > 0:
            raise BadSetting(f"temperature={temperature} must be above 0")
        if hasattr(scores, "worth"):  # Scores, which nobody needs who selects
            scores = _worth_of(self._pool.ids, scores)
        given = finite("scores", scores, len(self._pool), self._pool.ids)
        self._logits = (given - given.mean()) / (max(float(given.std()), 1e-12) * temperature)
        self._seed = random_seed(seed) % 2**64
        self.digest = digest(
            "temperature", self._pool.digest, self._take, self._seed, temperature, given.tobytes()
        )

    def selection(self, epoch: int) -> Selection:
        raw = np.random.PCG64(np.random.SeedSequence((self._seed, epoch))).random_raw(len(self._pool))
        uniform = ((raw >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
        keys = self._logits - np.log(-np.log(uniform))
        return self._pool.part(np.argpartition(-keys, self._take - 1)[: self._take])


class AnnealToFull(Policy):
    """Another policy, and all samples in the last epochs.

    Args:
        policy: Decides the first epochs.
        samples: Size of the data set, or what ``Selection`` takes: what the last epochs hold.
        epochs: Number of epochs.
        last: Part of the epochs that hold all samples, from 0 to 1.

    Raises:
        BadSetting: a value is out of its range.

    Examples:
        >>> half = penstock.select.RandomSubsets(1000, 0.5)
        >>> policy = penstock.select.AnnealToFull(half, 1000, epochs=8, last=0.25)
        >>> [len(policy.selection(epoch).ids) for epoch in range(8)]
        [500, 500, 500, 500, 500, 500, 1000, 1000]
    """

    def __init__(self, policy: Policy, samples: Any, *, epochs: int, last: float = 0.125) -> None:
        self._policy = policy
        self._full = pool_of(samples)
        self._from = first_full_epoch(epochs, last)
        self.digest = digest("anneal", policy.digest, self._full.digest, self._from)

    def selection(self, epoch: int) -> Selection:
        if epoch >= self._from:
            return self._full
        chosen = self._policy.selection(epoch)
        if None not in (chosen.masked, self._full.masked) and chosen.masked != self._full.masked:
            raise BadSetting(
                f"AnnealToFull: its policy selects from {chosen.masked:,} samples, and the last epochs from "
                f"{self._full.masked:,}: give both the same"
            )
        return chosen

    def report(self, ids: npt.ArrayLike, losses: npt.ArrayLike) -> None:
        self._policy.report(ids, losses)

    def check_ranks(self, ranks: int) -> None:
        self._policy.check_ranks(ranks)

    def state_dict(self) -> dict[str, Any]:
        return self._policy.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._policy.load_state_dict(state)


def selected_at(given: Any, epoch: int) -> tuple[Selection | None, Policy | None]:
    """Return what ``select=`` selects in an epoch, and the policy that decides it, if it is one."""
    return (given.selection(epoch), given) if isinstance(given, Policy) else (selection_of(given), None)


def pool_of(samples: Any) -> Selection:
    """Return the samples that a policy draws from, given as their number or as a selection."""
    if isinstance(samples, int | np.integer):
        return Selection(np.ones(whole_number("samples", cast("int", samples), 1), np.bool_))
    return samples if isinstance(samples, Selection) else Selection(samples)


def count_of(fraction: float, samples: int) -> int:
    """Return how many samples a fraction selects."""
    if not isinstance(fraction, int | float | np.number) or not 0 < fraction <= 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadSetting(f"fraction={fraction!r} must be a number above 0, and at most 1")
    count = round(fraction * samples)
    if not count:
        raise BadSetting(f"fraction={fraction} selects none of {samples:,} samples; {1 / samples:.2g} selects one")
    return count


def first_full_epoch(epochs: int, last: float) -> int:
    """Return from which epoch on all samples are taken, if the last part of the epochs takes them."""
    whole_number("epochs", epochs, 1)
    if not 0 <= last <= 1:
        raise BadSetting(f"last={last} must be from 0 to 1: the part of the epochs that hold all samples")
    return math.floor(round(epochs * (1 - last), 9))


def _worth_of(ids: Ids, scores: Any) -> npt.NDArray[np.float32]:
    """Return the worth of samples by their ids."""
    if (targets := scores.worth.shape[1]) > 1:
        raise BadSetting(f"scores: they are of {targets} targets; give those of one")
    places = np.searchsorted(scores.ids, ids)
    if (without := ids[scores.ids.take(places, mode="clip") != ids]).size:
        raise BadSetting(
            f"scores: {len(without):,} of {len(ids):,} samples have none, the first is id {without[0]:,}: give "
            "Selection(scores.ids) as samples, or score all"
        )
    return scores.worth[places, 0]


def finite(what: str, given: Any, count: int, ids: Ids) -> npt.NDArray[np.float64]:
    """Return a finite number for each of these samples."""
    values = np.asarray(given.detach().float().cpu() if hasattr(given, "detach") else given, np.float64)
    if values.shape != (count,):
        raise BadSetting(f"{what}: shape {values.shape}, for {count:,} samples: one number each")
    if not np.isfinite(values).all():
        bad = ids[~np.isfinite(values)]
        raise BadSetting(f"{what}: {len(bad):,} of {count:,} are not finite, the first is that of id {bad[0]:,}")
    return values


def ids_of_report(ids: Any, samples: int) -> Ids:
    """Return the ids of a report."""
    given = np.asarray(ids.cpu() if hasattr(ids, "cpu") else ids)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "ui"):
        raise BadSetting(f"report: ids of shape {given.shape}, {given.dtype}; give loader.ids, whole numbers")
    if given.size and (given.min() < 0 or given.max() >= samples):
        wrong = given[(given < 0) | (given >= samples)]
        raise BadSetting(f"report: id {wrong[0]:,} is not in a data set of {samples:,} samples")
    return given.astype(np.int64)
