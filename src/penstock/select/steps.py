"""Steps of a scoring, each in a file once it is done: a scoring that was interrupted goes on from them."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar, cast

import msgspec
import torch

from penstock.errors import BadSetting
from penstock.linux.files import held, written_whole
from penstock.select.meter import Cost, CostMeter
from penstock.select.training import Checkpoint, Moments

_COST, _OF = "cost.json", "of.json"
_Found = TypeVar("_Found")
_now: ContextVar[Steps | None] = ContextVar("steps", default=None)


class Steps:
    """A folder of the steps of one scoring that are done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.before = Cost(0.0, 0.0, 0.0)
        self.meter: CostMeter | None = None

    def begin(self, of: dict[str, str], meter: CostMeter, *, anew: bool) -> None:
        """Begin a scoring, or go on with it.

        ``of`` says what it is of, by name. With ``anew``, steps of another one are deleted.
        """
        if (path := self.folder / _OF).exists():
            then = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
            differs = [name for name in of if then.get(name) != of[name]]
            if differs and anew:
                for each in os.listdir(self.folder):
                    (self.folder / each).unlink()
            elif differs:
                raise BadSetting(
                    f"{self.folder} holds steps of another scoring, which was interrupted: another "
                    f"{', another '.join(differs)}. Delete it, or give another place"
                )
            else:
                self.before = msgspec.json.decode((self.folder / _COST).read_bytes(), type=Cost)
        elif others := sorted(os.listdir(self.folder)):
            raise BadSetting(f"{self.folder} holds {others[0]}, and no steps of a scoring: give another folder")
        self.meter = meter
        self.note_cost()
        _write(path, msgspec.json.encode(of))

    @property
    def holds_steps(self) -> bool:
        """Whether a step is done."""
        return any(self.folder.glob("*.pt"))

    def note_cost(self) -> None:
        """Note what the scoring has cost so far."""
        if self.meter is not None:
            _write(self.folder / _COST, msgspec.json.encode(self.before + self.meter.cost))

    def end(self, *, saved: bool = False) -> None:
        """Note the cost; remove a folder without steps, or of scores that are saved."""
        self.note_cost()
        if saved or (self.meter and not self.holds_steps):
            for each in os.listdir(self.folder) if saved else (_COST, _OF):
                (self.folder / each).unlink(missing_ok=True)
        with suppress(OSError):  # something is in it
            self.folder.rmdir()
        self.meter = None


def step(name: str, compute: Callable[[], _Found]) -> _Found:
    """Return the result of a step of the scoring that goes on: computed, or as it was kept.

    The name has no ``/``; the result has tensors, numbers, checkpoints, and containers of them.
    """
    steps = _now.get()
    if steps is None or steps.meter is None:
        return compute()
    path = steps.folder / f"{name}.pt"
    if path.exists():
        with torch.serialization.safe_globals([Checkpoint, Moments]):
            return cast("_Found", torch.load(path, weights_only=True))
    found = compute()
    with written_whole(path) as half:
        torch.save(found, half)
    steps.note_cost()
    return found


@contextmanager
def steps_in(folder: Path) -> Generator[Steps]:
    """Keep the steps of the scoring inside in a folder, made if need be, and locked for this process."""
    with held(folder, "partial results", "scoring in"):
        steps = Steps(folder)
        token = _now.set(steps)
        try:
            yield steps
        finally:
            _now.reset(token)
            steps.end()


def _write(path: Path, content: bytes) -> None:
    with written_whole(path) as half:
        half.write_bytes(content)
