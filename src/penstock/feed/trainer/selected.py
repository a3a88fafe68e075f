"""The samples that a trainer takes of a feed."""

from __future__ import annotations

import os

import numpy as np

from penstock.errors import BadSetting
from penstock.feed import wire
from penstock.feed.named_rows import decode_ids
from penstock.feed.trainer.holdings import Mine, ReceivedBlock
from penstock.linux.descriptors import opened
from penstock.linux.fork import close_in_children
from penstock.subsets.selection import Selection


class SelectedSamples:
    """A trainer's selection, as feeders are told of it and as blocks are read.

    Args:
        selection: The samples.

    Attributes:
        told: What a feeder is told, beside which the bits' descriptor travels.
    """

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self._file = opened("r+", os.memfd_create, "penstock-selection", os.MFD_CLOEXEC)
        close_in_children(self._file)
        self._bitmap = selection.bitmap()
        self._file.write(self._bitmap.packed.data)
        self.told = wire.Selected(selection.digest, self._file.fileno())

    def check(self, welcome: wire.Welcome) -> None:
        """Check that the samples are in a feed.

        Raises:
            BadSetting: some are not, or the selection is a mask of another length.
        """
        assert welcome.samples is not None, "the feeder admits no selection otherwise"
        try:
            self._bitmap = self.selection.bitmap(welcome.samples)
        except BadSetting as error:
            raise BadSetting(f"feed {welcome.name!r}: {error}") from None

    def mine(self, block: ReceivedBlock) -> Mine:
        """Return which rows of a block the trainer takes."""
        if block.mine is None:
            mask = self._bitmap.holds(decode_ids(block.ids, block.stored))
            lie = np.flatnonzero(mask)
            block.mine = Mine(lie if block.kept is None else block.kept[mask], lie)
        return block.mine

    def close(self) -> None:
        self._file.close()
