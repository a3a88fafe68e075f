"""A run from the side that started it: its keeper's process, and the link to it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import penstock.runs.keeper
from penstock.autosharing.options import to_environment
from penstock.inject import WATCH, injected, without_injection
from penstock.linux.files import memory_file
from penstock.linux.process import SENT
from penstock.runs.inside import SITE
from penstock.runs.keeper.link import Assignment
from penstock.runs.modes.mode import Mode
from penstock.runs.profilers import STEPS, command_of, steps_of
from penstock.runs.record import RunRecord
from penstock.runs.store import Store

_KEEPER = Path(penstock.runs.keeper.__file__).with_name("__main__.py")
_MOST_BYTES = 1 << 18


class Launched:
    """A run that was started, and whose keeper can be heard."""

    def __init__(
        self,
        store: Store,  # where the run is recorded
        record: RunRecord,
        mode: Mode,
        *,
        orphans: str,  # what becomes of it if this process disappears: "end" or "keep"
        terminal: tuple[bool, bool, bool],  # which of descriptors 0 to 2 are one; the run gets its own there
        stdin: bool,  # whether it gets this process's standard input; else it finds that empty
        variables: Mapping[str, str],  # environment variables that it gets besides this process's
        held: Sequence[int] = (),  # descriptors that its keeper holds open as long as anything of it lives
    ) -> None:
        self.record = record  # the run, as it was before it began
        self.mode = mode  # the open mode that it runs in
        folder = store.folder_of(record.id)
        (folder / "files").mkdir(exist_ok=True)
        self.environment = _environment_of(record, store, variables)  # all its environment variables
        order = memory_file("penstock-order", flags=0)
        Assignment(
            id=record.id,
            store=str(store.folder),
            folder=str(folder),
            command=command_of(record.plan, folder / "files"),
            directory=record.plan.directory,
            environment=self.environment,
            path=[os.path.abspath(entry) for entry in sys.path],
            time_limit_s=record.plan.time_limit_s,
            orphans=orphans,
            mps=variables.get("CUDA_MPS_PIPE_DIRECTORY", ""),
            merged=_outputs_are_one(),
            terminal=terminal,
            size=os.get_terminal_size(terminal.index(True)) if any(terminal) else (0, 0),
        ).to_file(order)
        self.keeper: int | None = None  # process of its keeper; None until that has reported it
        self._killed = False
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # to its keeper
        lease = () if mode.lease is None else (mode.lease,)
        given = (order.fileno(), theirs.fileno(), *lease, *held)
        # Guard and keeper begin with these blocked, and so live until they can tell that all of the run got one.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SENT)
        try:
            with theirs, order:
                self._guard = subprocess.Popen(
                    # Python variables of the run's environment are not meant for its keeper.
                    [sys.executable, "-I", "-S", str(_KEEPER), *map(str, given)],
                    stdin=None if stdin else subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=given,
                    env=without_injection(self.environment),
                    start_new_session=True,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def receive(self) -> tuple[int, bytes] | dict[str, Any] | None:
        """Return what the keeper sends next: output, with the number of its descriptor; or a report.

        None: it has ended, and sends no more.
        """
        try:
            packet = self.link.recv(_MOST_BYTES)
        except ConnectionResetError:
            packet = b""
        if not packet:
            return None
        return json.loads(packet) if packet.startswith(b"{") else (int(packet[:1]), packet[1:])

    def send(self, **words: Any) -> bool:
        """Send the keeper a message; return whether it can receive it."""
        try:
            self.link.send(json.dumps(words).encode(), socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    def leave(self) -> None:
        """Let it go on, unheard."""
        self.link.close()
        self._guard.returncode = 0  # subprocess would warn that it goes on

    def type(self, data: bytes) -> None:
        """Pass on what was typed."""
        with suppress(OSError):  # it has ended
            self.link.send(b"i" + data)

    def kill(self, why: str) -> None:
        """Kill the run; at the second call the keeper, which did not react."""
        if not self._killed:
            self._killed = True
            self.send(kill=why)
        elif self.keeper is not None:
            with suppress(ProcessLookupError):
                os.kill(self.keeper, signal.SIGKILL)
                self._guard.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Wait until nothing is left of the keeper."""
        self._guard.wait()
        self.link.close()


def _outputs_are_one() -> bool:
    """Return whether standard output and error go to one file, pipe or terminal."""
    try:
        return os.path.sameopenfile(1, 2)
    except OSError:  # one of them is closed
        return False


def _environment_of(record: RunRecord, store: Store, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a run: this process's, those given, and what describes the run."""
    plan = record.plan
    parameters = {
        f"PENSTOCK_PARAM_{re.sub(r'[^A-Z0-9]', '_', name.upper())}": value
        for name, value in plan.parameters.items()
    }
    steps = steps_of(plan)
    loaders = plan.watch_dataloader or steps or plan.share
    watched = [*(["loaders"] if loaders else []), *(["metrics"] if plan.watch_metrics else [])]
    return {
        "PYTHONUNBUFFERED": "1",  # what it prints is shown and stored at once
        **(injected(os.environ, SITE) | {WATCH: ",".join(watched)} if watched else without_injection(os.environ)),
        **(to_environment(plan.share) if plan.share else {}),
        **({STEPS: steps} if steps else {}),
        **({"CUDA_VISIBLE_DEVICES": ",".join(plan.devices)} if plan.devices else {}),
        **variables,
        **parameters,
        "PENSTOCK_RUN_ID": record.id,
        "PENSTOCK_RUN_NAME": record.name,
        "PENSTOCK_RUN_INDEX": str(record.index),
        "PENSTOCK_RUN_PARAMETERS": json.dumps(plan.parameters),  # with their names as they were written
        "PENSTOCK_RUN_FOLDER": str(store.folder_of(record.id) / "files"),
        "PENSTOCK_STORE": str(store.folder),
    }
