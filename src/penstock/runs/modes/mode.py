"""The seam of modes: what a mode gives to each run of a group, and puts back when the last has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, Protocol

from penstock.runs.plan import GroupPlan
from penstock.runs.record import RunRecord

if TYPE_CHECKING:
    from penstock.measure.gpus import Gpu


class Mode(Protocol):
    """What a group's runs share GPUs by. It exists from before the first of them starts until all have ended.

    Attributes:
        lease: Descriptor that each keeper holds open for as long as its run lives; None if nobody needs it. At the
            other end of that pipe, a process of the mode's sees the last of them go even if ``penstock run`` was
            killed, and puts back what was changed.
    """

    @property
    def lease(self) -> int | None: ...

    def variables(self, record: RunRecord) -> Mapping[str, str]:
        """Return environment variables of one run; called from several threads."""
        ...

    def began(self, record: RunRecord, pid: int) -> None:
        """Take note of a run that has begun; its command is this process."""
        ...

    def close(self) -> None:
        """Put back what was changed; all runs have ended."""
        ...


class TimeSlices:
    """Modes alone and plain: the GPU itself divides its time between processes."""

    lease = None

    def variables(self, record: RunRecord) -> Mapping[str, str]:
        return {}

    def began(self, record: RunRecord, pid: int) -> None:
        pass

    def close(self) -> None:
        pass


def check(what: str, group: GroupPlan, gpus: Sequence[Gpu]) -> None:
    """Check, before anything starts, that a group can run in its mode here.

    Args:
        what: Where the mode was asked for; the error's first words.
        group: The group; the devices of its runs are UUIDs.
        gpus: GPUs that ``penstock run`` sees.

    Raises:
        BadSetting: it cannot; the message says why.
    """


def opened(records: Sequence[RunRecord]) -> AbstractContextManager[Mode]:
    """Open the mode of a group, whose runs these are, until the end of a ``with`` block.

    Raises:
        PenstockError: it does not come up, though ``check`` saw nothing wrong; nothing of it is left.
    """
    return closing(TimeSlices())
