"""A feed that a script's loaders read, and the proof that it gives the samples of the script's own data set."""

from __future__ import annotations

import gc
import hashlib
import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.autosharing.ranks import Meeting
from penstock.autosharing.recipe import LoaderRecipe
from penstock.autosharing.verdict import Declined, Plan
from penstock.feed.launch.shared import shared
from penstock.feed.trainer.loader import Loader
from penstock.feed.trainer.options import LoaderOptions
from penstock.feed.wire import MOST_WITNESSES
from penstock.feed.witness import Compared, SampleComparison
from penstock.fingerprint.comparison import Fingerprint
from penstock.linux.when_gone import Living
from penstock.sources.torch.workers import hindrance, made_twice

if TYPE_CHECKING:
    from penstock.autosharing.iterator import SharedIterator


_PAUSE = 1000
"""Comparisons lie this many times their CPU time apart: they take a thousandth of a core at most."""


class OtherData(Declined):
    """A feed gives other samples than the script's own data set."""


class Proof:
    """Compares a few samples before the first batch of a feed, and others in the background of later epochs.

    Names and fingerprints of data cannot see all that decides a sample. Samples can be compared, where a forked
    child of the script makes them; whatever else cannot be compared is shared, and ``unproved`` is the reason.
    """

    def __init__(self) -> None:
        self.refusal = ""  # why the feed is not to be read; empty if nothing speaks against it
        self.unproved = self.random = ""
        """Why the newest comparison has found nothing; leaves left out of it, which come out another each time."""
        self._epochs = 0
        self._equal_in = 0  # epoch of the newest comparison that has found no difference
        self._compared = 0
        self._next_s = 0.0
        self._going_on: tuple[int, SampleComparison] | None = None

    def renew(self) -> None:
        """Compare before the next epoch as before the first: the data have changed, and their name has not."""
        if self._going_on is not None:
            self._going_on[1].close()
            self._going_on = None
        self._compared = 0

    def begin_epoch(self, script: Any, loader: Loader) -> None:
        """Compare before the first epoch of a script's loader, or in the background of a later one."""
        self.go_on()
        self._epochs += 1
        # Workers that persist read no change, without a feed neither.
        rests = script.persistent_workers or time.monotonic() < self._next_s
        if self._going_on or self.refusal or (self._compared and rests):
            return
        if why := hindrance(script):
            self.unproved = why
            return
        number = self._compared and 1 + (self._compared - 1) % (MOST_WITNESSES - 1)
        comparison = loader.compare(number, partial(made_twice, script))
        if number:
            self._going_on = self._epochs, comparison
        elif finding := comparison.finding(wait=True):
            self._conclude(self._epochs, finding, self._epochs - 1)
        self._compared += 1  # a comparison that Ctrl-C breaks off is made again

    def go_on(self) -> None:
        """Bring on what goes on in the background."""
        if self._going_on is not None:
            epoch, comparison = self._going_on
            if (finding := comparison.finding(wait=False)) is not None:
                self._going_on = None
                self._conclude(epoch, finding, self._epochs)

    def _conclude(self, epoch: int, finding: Compared, given: int) -> None:
        self._next_s = time.monotonic() + _PAUSE * finding.cpu_s
        self.unproved, self.random = finding.unproved, finding.random
        if finding.differs:
            self.refusal = f"{finding.differs} between its own data set and the feed"
            if given > self._equal_in:
                self.refusal += f"; its epochs {self._equal_in + 1} to {given} had not been compared"
        elif not finding.unproved:
            self._equal_in = epoch


_LEFT_AFTER = 32
"""Batches that this process asks for elsewhere, after which an iteration beside another leaves its feed."""


@dataclass(eq=False)
class ScriptFeed:
    """A feed from one script's side.

    A Loader reads one epoch at a time, and while it stands in the middle of one it holds room of the feed. Two
    that are asked by turns would wait for each other, and read one order. So an iteration that begins while
    another stands reads a feed beside this one. What stands while others are asked for many batches (a look at the
    first batch, held in a variable) leaves its feed, for which other runs may wait; if it is asked again, it goes
    on where it stood, with another Loader. Ranks, which begin an epoch together, have no feeds beside theirs: who
    begins takes over the Loader of who stands.

    The order and the random numbers of a feed follow from its name, and from how often this process has joined it:
    two feeds have nothing in common, and one that is started again does not repeat itself.

    If the first iteration of all ends after one batch, it was such a look: the next one gives a copy of that
    batch, and goes on behind it. One rank may have looked alone, while the others read that epoch.
    """

    name: str  # name of the feed
    fingerprint: Fingerprint  # fingerprint of what decides its batches
    recipe: LoaderRecipe  # makes its loader in the feeder
    plan: Plan  # how it is read
    asked: dict[str, Any]  # settings that it must have, as ``share`` takes them
    data: str  # name of the data set's class
    joined: Counter[str]  # how often this process has joined each feed, by name
    meeting: Meeting | None = None  # where the ranks of this job meet; None for a job of one process
    before: ScriptFeed | None = None  # the feed beside which this one is

    def __post_init__(self) -> None:
        self.is_announced = False  # whether a message has said that this feed is read
        self.is_new = self.plan.kind != "stream"  # whether an iteration that ends now may have been a look
        self.looked_at: list[Any] = []  # the batch of a look, which the next iteration gives first; else none
        self.failed = ""
        """Why there is no such feed any more: its data set has raised, or cannot be made in a feeder."""
        self.proof = Proof()  # what is known of whether it gives what the script's own data set does
        self.start_s = 0.0  # how long it took to join it, and so to start it if nobody had
        self.begun_s: float | None = None  # when that was done, by the monotonic clock; None before
        self._beside: ScriptFeed | None = None
        self._idle: list[Loader] = []
        self._begun = Living["SharedIterator"]()

    def without_others(self, iterator: SharedIterator) -> ScriptFeed:
        """Return this feed, or the first beside it on which no other iteration stands."""
        if self.plan.shard or not self._others(iterator):
            return self
        gc.collect()  # what was broken off may still wait for that
        if not self._others(iterator):
            return self
        if self._beside is None:
            feeds = [*self._before_this(), self]
            name = f"{feeds[0].name}-{len(feeds) + 1}"
            self._beside = replace(self, name=name, before=self)
        return self._beside.without_others(iterator)

    def take(self, iterator: SharedIterator) -> Loader:
        """Return a Loader for an iteration that begins."""
        if self.failed:
            raise Declined(self.failed)
        if self.proof.refusal and not self.meeting:  # ranks compare refusals where they meet
            raise Declined(self.proof.refusal)
        if self._idle:
            loader = self._idle.pop()
        elif others := self._others(iterator):
            other = min(others, key=lambda other: other.asked)
            loader = other.part()
            self._end(other)
        else:
            loader = self.joined_anew()
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

    def _before_this(self) -> list[ScriptFeed]:
        return [] if self.before is None else [*self.before._before_this(), self.before]

    def _others(self, iterator: SharedIterator) -> list[SharedIterator]:
        return [other for other in self._begun if other is not iterator]

    def _end(self, iterator: SharedIterator) -> None:
        self._begun.discard(iterator)
        if self.is_new and iterator.look:
            self.looked_at = iterator.look
        self.is_new = self.is_new and not iterator.given

    def joined_anew(self, state: dict[str, Any] | None = None) -> Loader:
        """Join the feed, and start it if nobody has: with the blocks that a Loader's state counts on."""
        plan = self.plan
        if state is None:
            words = f"{self.name} {self.joined[self.name]}".encode()
            seed = int.from_bytes(hashlib.sha256(words).digest()[:4])
            self.joined[self.name] += 1
        else:
            seed = state["plan"]["seed"]
            self.recipe.cut_to(state["plan"]["source_batch_size"])
        asked_s = time.monotonic()
        loader = shared(
            self.recipe,
            self.name,
            self.fingerprint,
            self.asked,
            LoaderOptions(
                plan.batch_size,
                plan.drop_last,
                plan.shard,
                pad=plan.pad,
                full=plan.full,
                pin_memory=plan.pin_memory,
            ),
            joined=self.recipe.cut_to,
            seed=seed,
        )
        if self.begun_s is None:
            self.begun_s = time.monotonic()
            self.start_s = self.begun_s - asked_s
        try:
            batches = len(loader)
        except TypeError:
            return loader
        short = loader.samples is None and plan.drop_last  # a feed that counts batches counts the short one, too
        if plan.batches not in (None, batches, batches - short):
            loader.close()
            raise Declined(f"an epoch has {plan.batches} batches in the script, and {batches} from a feed")
        return loader

    def give_back(self, iterator: SharedIterator, loader: Loader) -> None:
        """Take a Loader whose iteration is over."""
        self._end(iterator)
        self._idle.append(loader)

    def leave(self) -> None:
        """Close the Loaders that no iteration has: the script comes back to none of them."""
        while self._idle:
            self._idle.pop().close()

    def forget(self, iterator: SharedIterator) -> None:
        """Count no more on an iteration whose Loader is of no use."""
        self._begun.discard(iterator)
