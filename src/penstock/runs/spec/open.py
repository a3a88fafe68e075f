"""Spec files: read, locked against a second user, and updated with the status of their runs."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from penstock.errors import BadSetting, PenstockError
from penstock.linux.files import lock_file, taken
from penstock.runs.record import ENDED, GroupPlan, MachinePlan, RunPlan, RunRecord
from penstock.runs.spec import radt
from penstock.runs.spec.checks import Gpus
from penstock.runs.spec.radt import replaced
from penstock.runs.spec.yaml_file import plan_yaml

_SCHEDULED = ("priority", "deadline_s", "preempt", "feed", "epochs")


class Spec:
    """A YAML or CSV file of runs, held by this process until ``close``: nobody else can start its runs meanwhile.

    Everything in it has been checked when it is open, and nothing has been started. Rows of a CSV file whose runs
    were left running by a ``penstock run`` that is gone get these runs' status; one that goes on is an error.
    """

    def __init__(
        self,
        path: Path,  # the file; its suffix is one of ``command_line.SPECS``
        gpus: Gpus,  # GPUs that it can ask for
        *,
        in_turn: bool = False,  # whether groups run one after the other whatever it says, as in ``penstock run``
        held: bool = True,  # whether nobody else can start its runs; False for a look at it
        recorded: Callable[[str], RunRecord | None] = lambda id: None,  # finds a run by its id
    ) -> None:
        self.path = path.absolute()
        self.machine, self.room = MachinePlan(), dict[str, int]()
        """What it says of the machine, and what runs that say what they need may take together."""
        self.groups: list[GroupPlan] = []
        """What is to be run, one group after the other. Groups of a CSV file whose runs have all ended are left
        out; if one run of a group has not, the whole group runs again, for its runs belong together."""
        self.left_out: list[str] = []  # sentences on what the file asks for and will not be done
        self._rows: list[list[radt.Row]] = []
        self._lock = _locked(self.path) if held else None
        try:
            if self.path.suffix == ".csv":
                self._settle(recorded)
            self._plan(_read(self.path), gpus, in_turn)
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

    def _settle(self, recorded: Callable[[str], RunRecord | None]) -> None:
        """Write what has become of runs whose Status says that they run."""
        news: dict[radt.Cell, str] = {}
        for row in radt.rows_of(self.path, text := _read(self.path)):
            record = recorded(row.text("Run")) if row.text("Status") == "RUNNING" else None
            if record is None or record.id != row.text("Run"):
                continue
            if record.status not in ENDED:
                raise BadSetting(
                    f"{row.where}: {record.id} goes on; wait, or end it: penstock runs stop {record.id}"
                )
            news[row.cells["Status"]] = radt.status_of(record)
        if news:
            self._replace(replaced(text, news))

    def _plan(self, text: str, gpus: Gpus, in_turn: bool) -> None:
        if self.path.suffix != ".csv":
            planned, machine = plan_yaml(self.path, text, gpus, in_turn=in_turn)
            self.machine, self.room = machine.plan, machine.room
        else:
            rows = radt.rows_of(self.path, text)
            self._rows = radt.groups_of(rows)
            planned = [
                (f"{group[0].where}, column Collocation", radt.plan_rows(self.path, group, gpus))
                for group in self._rows
            ]
            if any("ncuattach" in map(str.lower, row.words("Listeners")) for group in self._rows for row in group):
                self.left_out.append(f"{self.path.name}: ncuattach is not started; ncu is")
            if not os.access(self.path.resolve().parent, os.W_OK):
                raise BadSetting(f"{self.path}: its folder cannot be written to, so Status could not be updated")
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

    def write_status(self, group: int, record: RunRecord) -> None:
        """Write a run's status and id into its row's Status and Run, wholly or not at all. YAML is left alone.

        ``group`` is the place of its group in ``groups``; the run's index is that of its plan in the group.
        """
        if not self._rows:
            return
        row = self._rows[group][record.index]
        rows = radt.rows_of(self.path, text := _read(self.path))
        now = rows[row.number] if row.number < len(rows) else None
        if now is None or now.untouched() != row.untouched():
            raise PenstockError(
                f"{row.where} was edited while {record.id} ran: its Status, {radt.status_of(record)}, is not in it"
            )
        news = {"Status": radt.status_of(record), "Run": record.id}
        self._replace(replaced(text, {now.cells[column]: new for column, new in news.items()}))

    def _replace(self, text: str) -> None:
        path = self.path.resolve()
        part = path.with_name(f".{path.name}.new")
        lock = None
        try:
            lock = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            lock_file(lock, fcntl.LOCK_EX)  # of the file that comes, before anybody can open it
            os.fchmod(lock, path.stat().st_mode & 0o7777)
            with open(lock, "wb", closefd=False) as file:
                file.write(text.encode())
            os.fsync(lock)
            part.replace(path)
        except OSError as error:
            if lock is not None:
                os.close(lock)
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise PenstockError(
                f"{path}: Status cannot be written: {error.strerror}; the file is as it was"
            ) from None
        self.close()
        self._lock = lock


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
