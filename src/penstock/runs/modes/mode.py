"""The seam of modes: what a mode gives to each run of a set, and puts back when the last has ended."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

from penstock.gpus.nvml import NvmlGpu
from penstock.runs.record import RunPlan, RunRecord


class Mode:
    """How a set of runs shares GPUs. It is open from before the first of them starts until all have ended.

    Modes alone and plain need no more than this: the GPU itself divides its time between processes.
    """

    lease: int | None = None
    """Descriptor of a pipe that each keeper holds open for as long as its run lives; None if not needed. A process
    of the mode's waits at the other end and puts back what was changed once the last keeper has ended, even if
    ``penstock run`` was killed."""

    def __init__(self, mode: str = "plain", records: Sequence[RunRecord] = ()) -> None:
        """Open it for these runs."""

    @staticmethod
    def check(what: str, mode: str, runs: Sequence[RunPlan], gpus: Sequence[NvmlGpu]) -> None:
        """Check, before anything starts, that runs can run here together in a mode, as ``GroupPlan`` has it.

        ``what`` says where it was asked for, and begins the error. The runs' devices are UUIDs; ``gpus`` are those
        that ``penstock run`` sees.
        """

    def variables(self, record: RunRecord) -> Mapping[str, str]:
        """Return environment variables of one run; called from several threads."""
        return {}

    def began(self, record: RunRecord, pid: int, note: Callable[[str], None]) -> None:
        """Take note of a run that has begun; ``pid`` is that of its command.

        ``note`` prints what is wrong with the run, and records it in its reason; any thread may call it.
        """

    def close(self) -> None:
        """Put back what was changed; all runs have ended."""

    def leave(self) -> None:
        """Wait for nothing: what was changed is put back once this process and the runs have ended."""


@contextmanager
def opened(mode: str, records: Sequence[RunRecord], *, outlived: bool = False) -> Generator[Mode]:
    """Open a mode for a set of runs, whatever their groups, for a ``with`` block.

    They may start and end at any time in it. Under MPS, so may another run whose devices are those of one of them.
    If ``outlived``, they go on where an exception, such as a Ctrl-C, ends the block.
    """
    opened_mode = kind_of(mode)(mode, records)
    try:
        yield opened_mode
    except BaseException:
        (opened_mode.leave if outlived else opened_mode.close)()
        raise
    opened_mode.close()


def mode_of(records: Sequence[RunRecord]) -> str:
    """Return the mode for some runs of one group: if each run has a MIG profile, with the profiles of these."""
    kind, _, profiles = records[0].mode.partition(":")
    each = profiles.split(",")
    return f"{kind}:{','.join(each[record.index] for record in records)}" if len(each) > 1 else records[0].mode


def kind_of(mode: str) -> type[Mode]:
    """Return the class of a mode, as ``GroupPlan`` has it."""
    if mode in ("alone", "plain"):
        return Mode
    from penstock.runs.modes import mig, mps

    return mps.Mps if mode == "mps" else mig.Mig
