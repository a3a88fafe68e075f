"""Claims of this machine's GPUs and cores: one scheduler at a time uses each."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from penstock.errors import BadSetting
from penstock.feed.directory import directory, usable
from penstock.linux.files import taken


@contextmanager
def claimed(names: Sequence[str]) -> Generator[None]:
    """Claim parts of this machine for this process, until the block or the process ends.

    They are named each once: "GPU " and a UUID, "GPU 0 (simulated)", "the CPUs".
    """
    with ExitStack() as claims:
        for name in sorted(names):  # of two who want the same, one gets all
            claims.enter_context(_claim(name))
        yield


@contextmanager
def _claim(name: str) -> Generator[None]:
    path = directory() / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.claim"
    with ExitStack() as undo:
        with usable(path.parent):
            fd = _locked(path, name)
            undo.callback(os.close, fd)
            undo.callback(path.unlink, missing_ok=True)
            os.ftruncate(fd, 0)
            os.write(fd, str(os.getpid()).encode())
        yield


def _locked(path: Path, name: str) -> int:
    while True:
        try:
            return taken(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        except BlockingIOError:
            with suppress(FileNotFoundError):  # it has been given up since
                raise BadSetting(
                    f"another penstock schedule run (process {path.read_text() or 'that begins'}) uses {name}: "
                    "wait for it, or give other GPUs"
                ) from None
