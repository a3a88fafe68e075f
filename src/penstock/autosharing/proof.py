"""What a run knows of whether a feed's samples are those that its own data set makes."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from penstock.autosharing.verdict import Declined
from penstock.feed.trainer.loader import Loader
from penstock.feed.trainer.witness import Comparison, Finding
from penstock.feed.wire import MOST_WITNESSES
from penstock.sources.torch.workers import hindrance, made_twice

_PAUSE = 1000
"""Between comparisons lies so many times the CPU time of one: they take a thousandth of a core at most."""


class OtherData(Declined):
    """A feed gives other samples than the script's own data set."""


class Proof:
    """Compares a few samples before the first batch of a feed, and others in the background of later epochs.

    Names and fingerprints of data cannot see all that decides a sample. Samples can be compared, where a forked
    child of the script makes them; whatever else cannot be compared is shared, and ``unproved`` says why.

    Attributes:
        refusal: Why the feed is not to be read; empty if nothing speaks against it.
        unproved: Why the newest comparison has found nothing.
        random: Leaves that it has not compared, as they come out another each time.
    """

    def __init__(self) -> None:
        self.refusal = ""
        self.unproved = self.random = ""
        self._epochs = 0
        self._equal_in = 0  # epoch of the newest comparison that has found no difference
        self._compared = 0
        self._next_s = 0.0
        self._going_on: tuple[int, Comparison] | None = None

    def renew(self) -> None:
        """Compare before the next epoch as before the first: the data have changed, and their name has not."""
        if self._going_on is not None:
            self._going_on[1].close()
            self._going_on = None
        self._compared = 0

    def begin_epoch(self, script: Any, loader: Loader) -> None:
        """Compare before the first epoch, or in the background of a later one.

        Args:
            script: The script's loader.
            loader: The feed's.
        """
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

    def _conclude(self, epoch: int, finding: Finding, given: int) -> None:
        self._next_s = time.monotonic() + _PAUSE * finding.cpu_s
        self.unproved, self.random = finding.unproved, finding.random
        if finding.differs:
            self.refusal = f"{finding.differs} between its own data set and the feed"
            if given > self._equal_in:
                self.refusal += f"; its epochs {self._equal_in + 1} to {given} had not been compared"
        elif not finding.unproved:
            self._equal_in = epoch
