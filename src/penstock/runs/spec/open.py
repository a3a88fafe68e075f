"""Spec files: read, and locked against a second user."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from penstock.errors import BadSetting
from penstock.linux.files import taken
from penstock.runs.record import GroupPlan, MachinePlan, RunPlan, RunRecord
from penstock.runs.spec import radt
from penstock.runs.spec.checks import Gpus
from penstock.runs.spec.yaml_file import plan_yaml

_SCHEDULED = ("priority", "deadline_s", "preempt", "feed", "epochs")


class Spec:
    """A YAML or CSV file of runs, held by this process until ``close``: nobody else can start its runs meanwhile.

    Everything in it has been checked when it is open, and nothing has been started. A run of a CSV file that a
    ``penstock run`` left running is an error.
    """

    def __init__(
        self,
        path: Path,  # the file; its suffix is one of ``command_line.SPECS``
        gpus: Gpus,  # GPUs that it can ask for
        *,
        in_turn: bool = False,  # whether groups run one after the other whatever it says, as in ``penstock run``
        held: bool = True,  # whether nobody else can start its runs; False for a look at it
        stored: Callable[[str], Sequence[RunRecord]] = lambda name: (),  # lists runs of the groups of a name
    ) -> None:
        self.path = path.absolute()
        self.machine, self.room = MachinePlan(), dict[str, int]()
        """What it says of the machine, and what runs that say what they need may take together."""
        self.groups: list[GroupPlan] = []
        """What is to be run, one group after the other. Groups of a CSV file whose runs have all ended are left
        out; if one run of a group has not, the whole group runs again, for its runs belong together."""
        self.left_out: list[str] = []  # sentences on what the file asks for and will not be done
        self._lock = _locked(self.path) if held else None
        try:
            self._plan(_read(self.path), gpus, in_turn, stored)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others run the file."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _plan(self, text: str, gpus: Gpus, in_turn: bool, stored: Callable[[str], Sequence[RunRecord]]) -> None:
        if self.path.suffix != ".csv":
            planned, machine = plan_yaml(self.path, text, gpus, in_turn=in_turn)
            self.machine, self.room = machine.plan, machine.room
        else:
            groups = radt.groups_of(radt.rows_of(self.path, text))
            planned = [
                (f"{rows[0].where}, column Collocation", plan)
                for rows in groups
                if not radt.have_ended(rows, plan := radt.plan_rows(self.path, rows, gpus), stored(plan.name))
            ]
            if any("ncuattach" in map(str.lower, row.words("Listeners")) for rows in groups for row in rows):
                self.left_out.append(f"{self.path.name}: ncuattach is not started; ncu is")
        for where, group in planned:
            admitted = gpus.admit(where, group)
            if admitted.mode == group.mode or admitted not in self.groups:  # what became plain may be there
                self.groups.append(admitted)
        self.left_out += gpus.left_out
        obeyed = ("feed",) if gpus.elsewhere else ()
        if in_turn and (ignored := [key for key in self._ignored() if key not in obeyed]):
            said = f"penstock run ignores {', '.join(ignored)}: penstock schedule run obeys"
            self.left_out.append(f"{said} {'them' if len(ignored) > 1 else 'it'}")

    def _ignored(self) -> list[str]:
        """List the keys that only a schedule obeys."""
        plain, machine = RunPlan(command=(), name="", directory=""), MachinePlan()
        runs = [run for group in self.groups for run in group.runs]
        of_runs = [key for key in _SCHEDULED if any(getattr(run, key) != getattr(plain, key) for run in runs)]
        of_machine = [key for key in ("cores", "objective") if getattr(self.machine, key) != getattr(machine, key)]
        return [key.removesuffix("_s") for key in of_runs] + [f"machine.{key}" for key in of_machine]


def _read(path: Path) -> str:
    content = b""
    try:
        content = path.read_bytes()
        return content.decode()
    except OSError as error:
        raise BadSetting(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadSetting(f"{path}:{line}: not UTF-8; save the file as UTF-8") from None


def _locked(path: Path) -> int:
    """Lock the file that ``path`` names, also if another process replaces it meanwhile."""
    try:
        # Over NFS, a lock for one alone needs a file that may be written.
        return taken(path, os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY)
    except BlockingIOError:
        raise BadSetting(f"{path}: another penstock run is at work on it; wait for it, or stop it") from None
    except OSError as error:
        raise BadSetting(f"{path}: {error.strerror}") from None
