"""What the benchmark asks of another tool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from penstock.advice.measurement import Measurement
from penstock.bench.io.plan import Case, Settings
from penstock.bench.io.processes import Answer
from penstock.bench.io.target import Target


class Tool(Protocol):
    """Another benchmark of storage, used only for reading."""

    @property
    def name(self) -> str:
        """As ``--external`` names it."""
        ...

    @property
    def programs(self) -> tuple[str, ...]:
        """Names and places of its program; the first that is there is run."""
        ...

    def refusal(self, target: Target) -> str:
        """Why it cannot read this target here, or an empty text."""
        ...

    def cases(self, settings: Settings) -> Iterator[Case]:
        """What it can measure of these settings; ``mech`` begins with the tool's name and a colon."""
        ...

    def command(self, program: str, case: Case, target: Target, settings: Settings) -> list[str]:
        """The command of a case."""
        ...

    def row(self, case: Case, answer: Answer, settings: Settings, *, cold: bool) -> Measurement:
        """What the command's answer says.

        Raises:
            MeasurementFailed: it says nothing that is known here.
        """
        ...
