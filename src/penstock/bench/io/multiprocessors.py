"""The part of a GPU's multiprocessors that its reading threads keep busy: told by NVML, or else its bound.

NVML API Reference Guide, "GPM Functions": NVML_GPM_METRIC_SM_UTIL, from Hopper on. No GPU has run this
(docs/hardware.md).
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.io.nvme.gpu_threads import most_busy_share
from penstock.measure.nvml import meter_of


class Busy(NamedTuple):
    """A part, 0 to 1, and in words what told it."""

    share: float
    note: str


class Multiprocessors:
    """A watch on them while they read.

    Args:
        device: Which GPU, such as ``"cuda:0"``.
        threads: Of it that ask.

    Raises:
        ReaderUnavailable: there is no driver to ask.
    """

    def __init__(self, device: str, threads: int) -> None:
        self._meter = meter_of(device)
        self._most = most_busy_share(threads, int(device.partition(":")[2]))

    def begin(self) -> None:
        self._meter.begin()

    def end(self) -> None:
        self._meter.end()

    @property
    def busy(self) -> Busy:
        """Of the time between ``begin`` and ``end``."""
        seen = self._meter.activity
        if seen.sm_active is None:
            return Busy(
                self._most, f"SMs: at most so many hold a reading thread; NVML does not tell ({seen.note})"
            )
        return Busy(seen.sm_active, "SMs: told by NVML, of all that ran on the GPU")
