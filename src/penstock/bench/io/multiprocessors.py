"""The part of a GPU's multiprocessors that its reading threads keep busy: from NVML, or else an upper bound.

NVML API Reference Guide, "GPM Functions": NVML_GPM_METRIC_SM_UTIL, from Hopper on. No GPU has run this
(docs/hardware.md).
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.gpus.gpm import meter_of
from penstock.io.nvme.gpu_threads import most_busy_share


class Busy(NamedTuple):
    """The busy part, 0 to 1, and where the number comes from."""

    share: float
    note: str


class Multiprocessors:
    """Watches a GPU's multiprocessors while it reads.

    Args:
        device: The GPU, such as ``"cuda:0"``.
        threads: Number of its reading threads.

    Raises:
        ReaderUnavailable: there is no driver.
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
        """The busy part between ``begin`` and ``end``."""
        seen = self._meter.activity
        if seen.sm_active is None:
            return Busy(
                self._most, f"SMs: at most so many hold a reading thread; NVML does not tell ({seen.note})"
            )
        return Busy(seen.sm_active, "SMs: told by NVML, of all that ran on the GPU")
