"""What the benchmark asks of another tool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from penstock.bench.io.plan import Case, Settings
from penstock.bench.io.processes import Answer
from penstock.bench.io.target import Target
from penstock.io.advice.measurements import Measurement


class Tool(Protocol):
    """Another benchmark of storage, used only for reading."""

    @property
    def name(self) -> str:
        """Name of the tool in ``--external``."""
        ...

    @property
    def programs(self) -> tuple[str, ...]:
        """Names and paths of its program; the first that exists is run."""
        ...

    def refusal(self, target: Target) -> str:
        """Return why the tool cannot read this target here; empty if it can."""
        ...

    def cases(self, settings: Settings) -> Iterator[Case]:
        """Yield the cases that it can measure; their ``mech`` begins with the tool's name and a colon."""
        ...

    def command(self, program: str, case: Case, target: Target, settings: Settings) -> list[str]:
        """Return the command of a case."""
        ...

    def row(self, case: Case, answer: Answer, settings: Settings, *, cold: bool) -> Measurement:
        """Parse the command's answer.

        Raises:
            MeasurementFailed: the answer is not understood.
        """
        ...
