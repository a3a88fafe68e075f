"""InfoBatch: leave out samples that are learnt already, and weigh the others so that the gradient stays."""

from __future__ import annotations

import warnings
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.basics.packages import initialized_distributed
from penstock.basics.sizes import random_seed, whole_number
from penstock.basics.tracebacks import users_stacklevel
from penstock.contracts import Ids
from penstock.errors import BadSetting
from penstock.sources.order import digest, permutation
from penstock.subsets.policy import Policy, finite, first_full_epoch, ids_of_report
from penstock.subsets.selection import Selection

Mine = TypeVar("Mine")


class InfoBatch(Policy):
    """Leaves out a random part of the samples whose last loss is below the mean, afresh in each epoch.

    The others below the mean get a weight, ``(losses * loader.weights).mean()``, such that the expected sum of the
    weighted gradients over an epoch is that of all samples. A sample whose loss nobody has reported yet is
    in every epoch, so the first one holds all, and so do the last ones. Without reports nothing is left out.

    The ranks of ``torch.distributed`` exchange what they report at the beginning of each epoch; until then it is
    part of a rank's own state. Ranks without an initialised process group would each leave other samples out, and
    are refused.

    Source: Qin et al., InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data Pruning (2303.04947).

    Args:
        samples: Size of the data set.
        epochs: Number of epochs that are trained.
        ratio: Part of the samples with a loss below the mean that is left out, from 0 to below 1.
        last: Part of the epochs, the last ones, that hold all samples.
        seed: Random seed of what is left out.

    Raises:
        BadSetting: a value is out of its range.

    Examples:
        >>> policy = penstock.select.InfoBatch(1000, epochs=10, ratio=0.5)
        >>> policy.report(np.arange(1000), np.where(np.arange(1000) < 600, 0.1, 2.0))  # 600 are below the mean
        >>> 600 < len(policy.selection(1).ids) < 800
        True
    """

    def __init__(
        self, samples: int, *, epochs: int, ratio: float = 0.5, last: float = 0.125, seed: int = 0
    ) -> None:
        self._samples = whole_number("samples", samples, 1)
        if not 0 <= ratio < 1:
            raise BadSetting(f"ratio={ratio} must be from 0 to below 1")
        self._ratio = ratio
        self._full_from = first_full_epoch(epochs, last)
        self._seed = random_seed(seed) % 2**64
        self._losses = np.full(samples, np.nan, np.float32)
        self._reported: list[tuple[Ids, npt.NDArray[np.float64]]] = []
        self._decided: tuple[int, Selection] | None = None
        self._warned = False
        self.digest = digest("infobatch", samples, ratio, self._full_from, self._seed)

    def selection(self, epoch: int) -> Selection:
        if self._decided is None or self._decided[0] != epoch:
            for reported in of_all_ranks(self._reported):
                for ids, losses in reported:
                    self._losses[ids] = losses
            self._reported = []
            self._decided = epoch, self._decide(epoch)
        return self._decided[1]

    def report(self, ids: npt.ArrayLike, losses: npt.ArrayLike) -> None:
        given = ids_of_report(ids, self._samples)
        values = finite("report: losses", losses, len(given), given)
        if len(given):
            self._reported.append((given, values))

    def check_ranks(self, ranks: int) -> None:
        if self._ratio and ranks > _rank()[1]:
            raise BadSetting(
                f"InfoBatch: {ranks:,} ranks, and {_rank()[1]:,} of them in torch.distributed's process group, by "
                "which they exchange their losses: call torch.distributed.init_process_group before the epoch, or "
                "each rank leaves out other samples"
            )

    def state_dict(self) -> dict[str, Any]:
        decided = None
        if self._decided is not None:
            epoch, chosen = self._decided
            decided = epoch, chosen.ids.tobytes(), np.asarray(chosen.weights).tobytes()
        return {  # bytes, not arrays: torch.load reads no arrays unless it is asked to trust a file
            "digest": self.digest,
            "losses": self._losses.tobytes(),
            "reported": [(ids.tobytes(), losses.tobytes()) for ids, losses in self._reported],
            "decided": decided,
            "rank": _rank(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.get("digest") != self.digest:
            raise BadSetting(
                f"this state was saved by policy {state.get('digest', 'none')}, and this one is {self.digest}: "
                "another data set, number of epochs, ratio or seed. Begin the training anew"
            )
        try:
            losses = np.frombuffer(state["losses"], np.float32).copy()
            reported = [(np.frombuffer(ids, np.int64), np.frombuffer(its)) for ids, its in state["reported"]]
            if len(losses) != self._samples or any(len(ids) != len(its) for ids, its in reported):
                raise ValueError("losses of another number of samples")
            decided, rank = state["decided"], state["rank"]
            if decided is not None:
                epoch, ids, weights = decided
                decided = epoch, Selection(np.frombuffer(ids, np.int64), np.frombuffer(weights, np.float32))
        except (KeyError, TypeError, ValueError) as error:
            raise BadSetting(f"this state of InfoBatch is damaged ({type(error).__name__}: {error})") from None
        if reported and rank != _rank():
            raise BadSetting(
                f"this state holds what rank {rank[0]} of {rank[1]} has reported, and this is "
                f"rank {_rank()[0]} of {_rank()[1]}: each rank saves and loads its own state"
            )
        self._losses, self._reported, self._decided = losses, reported, decided

    def _decide(self, epoch: int) -> Selection:
        weights = np.ones(self._samples, np.float32)
        known = np.isfinite(self._losses)
        unreported = self._decided is not None and self._decided[0] < epoch < self._full_from and not known.any()
        if unreported and self._ratio and not self._warned and _rank()[0] == 0:
            self._warned = True
            warnings.warn(
                "InfoBatch leaves nothing out, since no loss was reported: call report(ids, losses) after each "
                "batch",
                stacklevel=users_stacklevel(),
            )
        if epoch < self._full_from and known.any():
            learnt = np.flatnonzero(known & (self._losses < self._losses[known].mean(dtype=np.float64)))
            stay = len(learnt) - int(self._ratio * len(learnt))
            order = learnt[permutation(len(learnt), self._seed, epoch)]
            weights[order[stay:]] = 0
            weights[order[:stay]] = len(learnt) / max(stay, 1)
        ids = np.flatnonzero(weights)
        return Selection(ids, weights[ids])


def _rank() -> tuple[int, int]:
    """Return this process's place among its ranks, and their number."""
    distributed = initialized_distributed()
    return (distributed.get_rank(), distributed.get_world_size()) if distributed else (0, 1)


def of_all_ranks(mine: Mine) -> list[Mine]:
    """Return what each rank of ``torch.distributed`` has, in one order on all of them; all call this."""
    distributed = initialized_distributed()
    if distributed is None:
        return [mine]
    ranks = [mine] * distributed.get_world_size()
    distributed.all_gather_object(ranks, mine)
    return ranks
