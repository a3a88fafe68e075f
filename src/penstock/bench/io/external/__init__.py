"""Other tools that measure storage, by name; their numbers go into one table with Penstock's."""

from __future__ import annotations

import shutil
from typing import NamedTuple

from penstock.bench.io.external.bam import Bam
from penstock.bench.io.external.fio import Fio
from penstock.bench.io.external.gdsio import Gdsio
from penstock.bench.io.external.spdk import Spdk
from penstock.bench.io.external.tool import Tool
from penstock.bench.io.plan import Case, Settings
from penstock.bench.io.processes import answer
from penstock.bench.io.target import Target
from penstock.io.advice.measurements import Measurement

TOOLS: tuple[Tool, ...] = (Fio(), Gdsio(), Spdk(), Bam())


class Installed(NamedTuple):
    """A tool that can run here."""

    tool: Tool
    program: str

    def measure(self, case: Case, target: Target, settings: Settings, *, cold: bool) -> Measurement:
        """Run the tool for one case.

        Raises:
            MeasurementFailed: the tool failed, hung, or its answer is not understood.
        """
        command = self.tool.command(self.program, case, target, settings)
        limit_s = settings.warm_up_s + settings.runtime_s + settings.limit_s
        return self.tool.row(case, answer(command, limit_s=limit_s), settings, cold=cold)


def installed(settings: Settings, target: Target) -> tuple[dict[str, Installed], list[str]]:
    """Return the requested tools that can run here, and a remark for each other one that says why not."""
    found: dict[str, Installed] = {}
    remarks: list[str] = []
    for tool in TOOLS:
        if tool.name not in settings.external:
            continue
        program = next(filter(None, map(shutil.which, tool.programs)), None)
        if program is None:
            remarks.append(f"{tool.name} is not run: {tool.programs[0]} is not installed")
        elif refusal := tool.refusal(target):
            remarks.append(f"{tool.name} is not run: {refusal}")
        elif not any(tool.cases(settings)):
            remarks.append(
                f"{tool.name} is not run: it has nothing to measure for --dest {', '.join(settings.dest)}"
            )
        else:
            found[tool.name] = Installed(tool, program)
    return found, remarks
