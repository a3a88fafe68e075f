"""What a mode gives to each run of a group, and puts back when the last has ended."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager

from penstock.measure.gpus import Gpu
from penstock.runs.plan import GroupPlan
from penstock.runs.record import RunRecord


class Mode:
    """What a group's runs share GPUs by. It exists from before the first of them starts until all have ended.

    This one is for modes alone and plain: the GPU itself divides its time between processes.

    Attributes:
        lease: Descriptor that each keeper holds open for as long as its run lives; None if nobody needs it.
    """

    lease: int | None = None

    def variables(self, record: RunRecord) -> Mapping[str, str]:
        """Return environment variables of one run; called from several threads."""
        return {}

    def began(self, record: RunRecord, pid: int, note: Callable[[str], None]) -> None:
        """Take note of a run that has begun.

        Args:
            record: The run.
            pid: Process of its command.
            note: Tells people what is wrong with the run, and keeps it in its reason; any thread may call it.
        """

    def close(self) -> None:
        """Put back what was changed; all runs have ended."""


class Leased(Mode):
    """A mode of which processes put back what was changed, even if ``penstock run`` was killed.

    They wait at the other end of the lease, a pipe, and so see the last run go.
    """

    def __init__(self) -> None:
        self._ended, self.lease = os.pipe()
        self._waiting: list[subprocess.Popen[str]] = []

    def start(self, command: Sequence[str], *words: str) -> str:
        """Start such a process; return the first line that it prints, which is empty if it died.

        Args:
            command: What is started.
            words: What follows; before them comes the descriptor that ends with the lease.
        """
        process = subprocess.Popen(
            [*command, str(self._ended), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            pass_fds=(self._ended,),
            start_new_session=True,  # a Ctrl-C is not for it
            text=True,
        )
        self._waiting.append(process)
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def close(self) -> None:
        """Have all put back, and wait for that."""
        for fd in (self._ended, self.lease):
            if fd is not None:
                os.close(fd)
        for process in self._waiting:
            process.communicate()


def check(what: str, group: GroupPlan, gpus: Sequence[Gpu]) -> None:
    """Check, before anything starts, that a group can run here in its mode, which is neither alone nor plain.

    Args:
        what: Where the mode was asked for; the error's first words.
        group: The group; the devices of its runs are UUIDs.
        gpus: GPUs that ``penstock run`` sees.

    Raises:
        BadSetting: it cannot; the message says why.
    """
    from penstock.runs.modes import mig, mps

    (mps if group.mode == "mps" else mig).check(what, group, gpus)


@contextmanager
def opened(records: Sequence[RunRecord]) -> Generator[Mode]:
    """Open the mode of a group, whose runs these are, for a ``with`` block.

    Raises:
        PenstockError: it does not come up, though ``check`` saw nothing wrong; nothing of it is left.
    """
    mode = Mode()
    if records[0].mode == "mps":
        from penstock.runs.modes.mps import Mps

        mode = Mps(records)
    elif records[0].mode.startswith("mig:"):
        from penstock.runs.modes.mig import Mig

        mode = Mig(records)
    with closing(mode):
        yield mode
