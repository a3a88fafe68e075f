"""The seam of modes: what a mode gives to each run of a group, and puts back when the last has ended."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Protocol

from penstock.gpus.nvml import NvmlGpu
from penstock.runs.plan import GroupPlan
from penstock.runs.record import RunRecord


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

    def began(self, record: RunRecord, pid: int, note: Callable[[str], None]) -> None:
        """Take note of a run that has begun.

        Args:
            record: The run.
            pid: Process of its command.
            note: Tells people what is wrong with the run, and keeps it in its reason; any thread may call it.
        """
        ...

    def close(self) -> None:
        """Put back what was changed; all runs have ended."""
        ...


class TimeSlices:
    """Modes alone and plain: the GPU itself divides its time between processes."""

    lease = None

    def variables(self, record: RunRecord) -> Mapping[str, str]:
        return {}

    def began(self, record: RunRecord, pid: int, note: Callable[[str], None]) -> None:
        pass

    def close(self) -> None:
        pass


def check(what: str, group: GroupPlan, gpus: Sequence[NvmlGpu]) -> None:
    """Check, before anything starts, that a group can run here in its mode.

    Args:
        what: Where the mode was asked for; the error's first words.
        group: The group; the devices of its runs are UUIDs.
        gpus: GPUs that ``penstock run`` sees.

    Raises:
        BadSetting: it cannot; the message says why.
    """
    _kind(group.mode)[0](what, group, gpus)


@contextmanager
def opened(records: Sequence[RunRecord]) -> Generator[Mode]:
    """Open the mode of a group, whose runs these are, for a ``with`` block.

    Raises:
        PenstockError: it does not come up, though ``check`` saw nothing wrong; nothing of it is left.
    """
    with closing(_kind(records[0].mode)[1](records)) as mode:
        yield mode


def _kind(
    mode: str,
) -> tuple[Callable[[str, GroupPlan, Sequence[NvmlGpu]], None], Callable[[Sequence[RunRecord]], Mode]]:
    """Return what checks that a group can run in a mode, and what opens the mode."""
    if mode in ("alone", "plain"):
        return lambda what, group, gpus: None, lambda records: TimeSlices()
    from penstock.runs.modes import mig, mps

    return (mps.check, mps.Mps) if mode == "mps" else (mig.check, mig.Mig)
