"""What is kept with scores: what they were computed from, how, and at what cost."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock._version import __version__
from penstock.runs.machine import Machine
from penstock.select.identity import DataIdentity
from penstock.select.meter import Cost

Direction = Literal["high", "low"]
FORMAT = 2
"""Of format 1, images in a feed had other ids: theirs is the order of torchvision's ImageFolder now."""


class ScoresHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What scores were computed from, how, and at what cost.

    Attributes:
        data: Identity of the data set.
        ids_digest: Digest of the ids that were scored, in order.
        method: Name of the method.
        method_version: Its version: another one's scores may differ.
        settings: What the method was asked, as text.
        checkpoint: Digest of the model's parameters that scored; empty if no model did.
        seed: Random seed.
        direction: Which scores are worth more: "high" or "low".
        targets: Names of the tasks that there is a score for; empty if there is one number a sample.
        cost: What computing them cost.
        machine: Where they were computed.
    """

    data: DataIdentity
    ids_digest: str
    method: str
    method_version: str
    settings: dict[str, str] = {}
    checkpoint: str = ""
    seed: int = 0
    direction: Direction = "high"
    targets: tuple[str, ...] = ()
    cost: Cost
    machine: Machine
    format: int = FORMAT
    penstock: str = __version__

    @property
    def asked(self) -> str:
        """The settings of the method, for a person."""
        return ", ".join(f"{name} {value}" for name, value in self.settings.items())
