"""A feed that a script's loaders read: a ``Loader`` for each iteration that is alive."""

from __future__ import annotations

import gc
import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any

from penstock.autosharing.proof import Proof
from penstock.autosharing.ranks import Meeting
from penstock.autosharing.translate import Recipe
from penstock.autosharing.verdict import Declined, Plan
from penstock.feed.launch.shared import shared
from penstock.feed.trainer.batcher import LoaderOptions
from penstock.feed.trainer.loader import Loader
from penstock.fingerprint.comparison import Fingerprint
from penstock.linux.when_gone import Living

if TYPE_CHECKING:
    from penstock.autosharing.iterator import SharedIterator


_LEFT_AFTER = 32
"""Batches that this process asks for elsewhere, after which an iteration beside another leaves its feed."""


class Feed:
    """A feed from one script's side.

    A Loader reads one epoch at a time, and while it stands in the middle of one it holds room of the feed. Two
    that are asked by turns would wait for each other, and read one order. So an iteration that begins while
    another stands reads a feed beside this one. What stands while others are asked for many batches (a look at the
    first batch, kept in a variable) leaves its feed, for which other runs may wait; if it is asked again, it goes
    on where it stood, with another Loader. Ranks, which begin an epoch together, have no feeds beside theirs: who
    begins takes over the Loader of who stands.

    The order and the random numbers of a feed follow from its name, and from how often this process has joined it:
    two feeds have nothing in common, and one that is started again does not repeat itself.

    If the first iteration of all ends after one batch, it was such a look: the next one gives a copy of that
    batch, and goes on behind it. One rank may have looked alone, while the others read that epoch.

    Args:
        name: Name of the feed.
        fingerprint: Fingerprint of what decides its batches.
        recipe: Makes its loader in the feeder.
        plan: How it is read.
        asked: Settings that it must have, as ``share`` takes them.
        data: Name of the data set's class.
        joined: How often this process has joined each feed, by name.
        meeting: Where the ranks of this job meet; None for a job of one process.
        before: The feed beside which this one is.

    Attributes:
        meeting: As given.
        fingerprint: As given.
        told: Whether the script's user has been told that this feed is read.
        is_new: Whether an iteration that ends now may have been a look.
        looked_at: The batch of a look, which the next iteration gives first; else none.
        failed: Why there is no such feed any more: its data set has raised, or cannot be made in a feeder.
        proof: What is known of whether it gives what the script's own data set does.
    """

    def __init__(
        self,
        name: str,
        fingerprint: Fingerprint,
        recipe: Recipe,
        plan: Plan,
        asked: dict[str, Any],
        data: str,
        joined: Counter[str],
        meeting: Meeting | None = None,
        before: Feed | None = None,
    ) -> None:
        self.name = name
        self.plan = plan
        self.data = data
        self.meeting = meeting
        self.told = False
        self.is_new = plan.kind != "stream"
        self.looked_at: list[Any] = []
        self.failed = ""
        self.proof = Proof()
        self.fingerprint = fingerprint
        self._recipe = recipe
        self._asked = asked
        self._joined = joined
        self._before = before
        self._beside: Feed | None = None
        self._idle: list[Loader] = []
        self._begun = Living["SharedIterator"]()

    def without_others(self, iterator: SharedIterator) -> Feed:
        """Return this feed, or the first beside it on which no other iteration stands."""
        if self.plan.shard or not self._others(iterator):
            return self
        gc.collect()  # what was broken off may still wait for that
        if not self._others(iterator):
            return self
        if self._beside is None:
            feeds = [*self._before_this(), self]
            name = f"{feeds[0].name}-{len(feeds) + 1}"
            made_of = self.fingerprint, self._recipe, self.plan, self._asked, self.data, self._joined
            self._beside = Feed(name, *made_of, before=self)
        return self._beside.without_others(iterator)

    def take(self, iterator: SharedIterator) -> Loader:
        """Return a Loader for an iteration that begins.

        Raises:
            Declined: nobody can read this feed as the script reads.
        """
        if self.failed:
            raise Declined(self.failed)
        if self.proof.refusal and not self.meeting:  # ranks tell each other where they meet
            raise Declined(self.proof.refusal)
        if self._idle:
            loader = self._idle.pop()
        else:
            others = self._others(iterator)
            loader = self._taken_over(others) if others else self.joined_anew()
        if self.looked_at:
            loader.load_state_dict(loader.state_dict())  # else its next loop would give the epoch up
        self._begun.add(iterator)
        return loader

    def let_rest(self, asked: int) -> None:
        """Have the iterations on the feeds before this one leave them, if only others are asked by now."""
        for feed in self._before_this():
            for other in feed._begun:
                if asked - other.asked > _LEFT_AFTER:
                    other.rest()

    def _before_this(self) -> list[Feed]:
        return [] if self._before is None else [*self._before._before_this(), self._before]

    def _others(self, iterator: SharedIterator) -> list[SharedIterator]:
        return [other for other in self._begun if other is not iterator]

    def _taken_over(self, others: list[SharedIterator]) -> Loader:
        other = min(others, key=lambda other: other.asked)
        loader = other.part()
        self._end(other)
        return loader

    def _end(self, iterator: SharedIterator) -> None:
        self._begun.discard(iterator)
        if self.is_new and iterator.look:
            self.looked_at = iterator.look
        self.is_new = self.is_new and not iterator.given

    def joined_anew(self, state: dict[str, Any] | None = None) -> Loader:
        """Join the feed, and start it if nobody has: with the blocks that a Loader's state counts on.

        Raises:
            Declined: its epochs are not as long as the script's loader says.
        """
        plan = self.plan
        if state is None:
            words = f"{self.name} {self._joined[self.name]}".encode()
            seed = int.from_bytes(hashlib.sha256(words).digest()[:4])
            self._joined[self.name] += 1
        else:
            seed = state["plan"]["seed"]
            self._recipe.keep_to(state["plan"]["source_batch_size"])
        loader = shared(
            self._recipe,
            self.name,
            self.fingerprint,
            self._asked,
            LoaderOptions(
                plan.batch_size,
                plan.drop_last,
                plan.shard,
                pad=plan.pad,
                full=plan.full,
                pin_memory=plan.pin_memory,
            ),
            joined=self._recipe.keep_to,
            seed=seed,
        )
        try:
            batches = len(loader)
        except TypeError:
            return loader
        if plan.batches not in (None, batches):
            loader.close()
            raise Declined(f"an epoch has {plan.batches} batches in the script, and {batches} from a feed")
        return loader

    def give_back(self, iterator: SharedIterator, loader: Loader) -> None:
        """Take a Loader whose iteration is over."""
        self._end(iterator)
        self._idle.append(loader)

    def forget(self, iterator: SharedIterator) -> None:
        """Count no more on an iteration whose Loader is of no use."""
        self._begun.discard(iterator)
