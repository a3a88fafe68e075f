"""A sampler for any DataLoader that gives selected samples."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from penstock.basics.sizes import random_seed, whole_number
from penstock.basics.tracebacks import users_stacklevel
from penstock.errors import BadSetting
from penstock.sources.order import permutation
from penstock.subsets.policy import Fixed, Policy
from penstock.subsets.selection import Ids, Selection


class SelectionSampler:
    """Gives the ids that a selection or a policy selects, each once an epoch, in an order of the epoch's own.

    For ``DataLoader(dataset, sampler=...)``, with any framework. An epoch's order follows from the seed and the
    epoch's number, which ``set_epoch`` sets, and which grows by itself where nobody does. Ranks get equally many
    ids, dealt as torch's ``DistributedSampler`` deals them: some twice, or with ``drop_last`` some not at all.
    Lightning and Accelerate deal what a sampler gives to their ranks: there leave ``rank`` and ``num_replicas``
    out, or each rank trains on a part of its part.

    Args:
        selection: What ``Selection`` takes, or a policy (``penstock.select``), which is asked at the beginning of
            each epoch.
        shuffle: Whether the order is random; else ids rise.
        seed: Random seed of the order.
        rank: Rank of this process.
        num_replicas: Number of ranks.
        drop_last: Leave out the ids that cannot be dealt evenly.
        samples: Size of the data set, if an epoch that selects other ids is to be refused.
        batch_size: Batch size of a ``DataLoader`` that has ``drop_last``, if an epoch without a batch is to be
            refused.

    Raises:
        BadSetting: a value makes no sense, or the first epoch is refused; later ones are when they begin.

    Examples:
        >>> sampler = penstock.SelectionSampler([7, 3, 5], shuffle=False)
        >>> list(sampler), len(sampler)
        ([3, 5, 7], 3)
    """

    def __init__(
        self,
        selection: Any,
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        num_replicas: int = 1,
        drop_last: bool = False,
        samples: int | None = None,
        batch_size: int = 1,
    ) -> None:
        self.policy: Policy = selection if isinstance(selection, Policy) else Fixed(selection)
        self.shuffle = shuffle
        self.seed = random_seed(seed)
        self.num_replicas = whole_number("num_replicas", num_replicas, 1)
        self.rank = whole_number("rank", rank, 0, num_replicas - 1)
        self.drop_last = drop_last
        self._epoch = 0
        self._given = 0
        self._resumed = False
        self._samples = None if samples is None else whole_number("samples", samples, 1)
        self._batch_size = whole_number("batch_size", batch_size, 1)
        self._check()

    @property
    def policy_name(self) -> str | None:
        """Name of the policy that decides each epoch anew; None where one selection holds for all."""
        return None if self.policy.fixed else type(self.policy).__name__

    @property
    def selection(self) -> Selection:
        """The samples of the epoch that was begun last."""
        return self.policy.selection(self._epoch)

    def weights(self, ids: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return the weights of samples of this epoch, by their ids; 1 where the selection has none."""
        return self.selection.weights_of(np.asarray(ids))

    def __len__(self) -> int:
        return (len(self.selection) + (0 if self.drop_last else self.num_replicas - 1)) // self.num_replicas

    def __iter__(self) -> Iterator[int]:
        if not self._resumed or self._given == len(self):
            self._epoch += self._given > 0
            self._given = 0
        self._resumed = False
        self.policy.check_ranks(self.num_replicas)
        self._check()
        epoch = self._epoch
        for id in self._dealt(epoch)[self._given :].tolist():
            self._given += 1
            yield id

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be that of this epoch; the rest of it, if a state of this epoch was loaded.

        It warns if a loaded state is given up, unless its epoch was at its end and this is the next one.
        """
        if epoch != self._epoch or not self._resumed:
            if self._resumed and (epoch, self._given) != (self._epoch + 1, len(self)):
                warnings.warn(
                    f"set_epoch({epoch}) gives up the state that was loaded, {self._given:,} of {len(self):,} "
                    f"samples into epoch {self._epoch}. Accelerate sets epochs, from 0 on: call "
                    f"set_epoch({self._epoch}) of its loader before",
                    stacklevel=users_stacklevel(),
                )
            self._epoch, self._given, self._resumed = whole_number("epoch", epoch, 0), 0, False

    def state_dict(self) -> dict[str, Any]:
        """Return where the iteration stands, in plain numbers.

        A DataLoader's workers are handed ids ahead of the batches that a script has: under ``num_workers`` set
        ``given`` to the samples that this rank has trained on.
        """
        policy = self.policy.state_dict()
        return {"epoch": self._epoch, "given": self._given, **self._plan(), "policy": policy}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration give the rest of the epoch in which a state was saved.

        Raises:
            BadSetting: it is no such state, or was saved with another selection, order, or number of ranks.
        """
        given = cast("object", state)  # of any type: it comes from a file
        plan = self._plan()
        if not isinstance(given, dict) or not {"epoch", "given", *plan} <= given.keys():
            raise BadSetting("this state does not come from a SelectionSampler's state_dict()")
        if differs := [f"{name}={state[name]!r}" for name in plan if state[name] != plan[name]]:
            mine = ", ".join(f"{name}={plan[name]!r}" for name in plan if state[name] != plan[name])
            raise BadSetting(
                f"this state was saved with {', '.join(differs)}, and the sampler has {mine}: begin the epoch anew"
            )
        self.policy.load_state_dict(state.get("policy", {}))
        before, self._epoch = self._epoch, whole_number("epoch", state["epoch"], 0)
        try:
            self._given = whole_number("given", state["given"], 0, len(self))
        except BadSetting:
            self._epoch = before
            raise
        self._resumed = True

    def _check(self) -> None:
        """Refuse an epoch of ids that the data set lacks, or without a batch."""
        self.selection.check(self._samples)
        if len(self) >= self._batch_size:
            return
        ranks = f", {len(self):,} for each of {self.num_replicas:,} ranks," if self.num_replicas > 1 else ""
        less = "leave out drop_last" if self._batch_size == 1 else "take smaller batches"
        raise BadSetting(
            f"select: {len(self.selection):,} samples{ranks} fill no batch of {self._batch_size:,}: select more, "
            f"or {less}"
        )

    def _plan(self) -> dict[str, Any]:
        """What decides which ids come in which order."""
        return {
            "seed": self.seed,
            "selection": self.policy.digest,
            "shuffle": self.shuffle,
            "num_replicas": self.num_replicas,
            "drop_last": self.drop_last,
        }

    def _dealt(self, epoch: int) -> Ids:
        """Return this rank's ids of an epoch."""
        ids = self.selection.ids
        if self.shuffle:
            ids = ids[permutation(len(ids), self.seed % 2**64, epoch)]
        dealt = len(self) * self.num_replicas
        return ids.take(range(self.rank, dealt, self.num_replicas), mode="wrap")
