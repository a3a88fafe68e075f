"""Losses that a run reports while it trains, as scores that cost nothing."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.basics.packages import initialized_distributed
from penstock.basics.sizes import whole_number
from penstock.basics.tracebacks import users_stacklevel
from penstock.errors import BadSetting
from penstock.runs.machine import describe
from penstock.select.header import Direction, ScoresHeader
from penstock.select.identity import DataIdentity, identity_of
from penstock.select.meter import Cost
from penstock.select.scores import Scores
from penstock.subsets.policy import finite, ids_of_report


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

        A warning says how many were not. Choices by these scores leave them out.

        Args:
            data: The map-style data set; unless given, only its size will be compared.
            direction: "low" keeps samples that are learnt, and leaves wrong labels out; "high" keeps the others.
            checkpoint: What tells the model, if anybody wants to know.
            seed: Random seed of the run.

        Raises:
            BadSetting: nothing was reported, or the data set has another size.
        """
        sums, counts = _of_all_ranks(self._sums, self.counts)
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


def _of_all_ranks(
    sums: npt.NDArray[np.float64], counts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    distributed = initialized_distributed()
    if distributed is None:
        return sums, counts
    ranks: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(ranks, (sums, counts))
    return np.sum([each for each, _ in ranks], 0), np.sum([each for _, each in ranks], 0)
