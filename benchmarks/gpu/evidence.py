"""Runs what needs a GPU, part by part, and records the outcome: ``make gpu``.

Nothing is fetched from a network. A part ends within its limit, and has a record from its first moment: a step
that lacks something is ``not run``, one that hangs is killed with all that it started.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import uuid
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.gpu.predictions import PREDICTIONS
from benchmarks.gpu.record import ROOT, TAIL_CHARS, Outcome, Record, counts_of, plain
from benchmarks.gpu.steps import PART_S, PARTS, Step

MARK = "PENSTOCK_EVIDENCE"
_TOOLS = "/usr/local/cuda/bin"
_KILL_S = 10.0
_LEFT_S = 5.0
"""A step with less time left than this is not begun."""

_GPU = """
import json, torch
n = torch.cuda.device_count() if torch.cuda.is_available() else 0
print(json.dumps({
    "torch": torch.__version__, "cuda": torch.version.cuda,
    "names": [torch.cuda.get_device_name(i) for i in range(n)],
    "capabilities": [".".join(map(str, torch.cuda.get_device_capability(i))) for i in range(n)],
}))
"""
_USAGE = "Usage: "  # of a command that was called wrongly, whose status may be that of what is unavailable
_LIBRARIES = ("cuda-bindings", "nvidia-ml-py", "nvidia-cuda-nvrtc", "nvidia-cufile", "pytest")


class Bench:
    """One run of ``make gpu``; of a folder of wheels, those for this Python are unpacked."""

    def __init__(self, out: Path, wheels: Path | None = None, limit_s: float = PART_S) -> None:
        self.out = out  # folder for records and logs
        self.limit_s = limit_s  # time limit of each part
        self._mark = uuid.uuid4().hex
        self.notes: list[str] = []
        out.mkdir(parents=True, exist_ok=True)
        paths = [str(ROOT / "src"), str(ROOT)]
        if wheels is not None:
            unpacked = ROOT / "build" / "gpu-wheels"  # not in OUT, which is brought back
            self.notes = unpack(wheels, unpacked)
            paths.insert(0, str(unpacked))
        sys.path[:0] = paths
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [*paths, os.environ.get("PYTHONPATH", "")])),
            "PYTHONFAULTHANDLER": "1",
            MARK: self._mark,
        }
        self._machine, lacks = described()
        self._gpu, no_gpu = self._gpu_found()
        self._missing = no_gpu or lacks

    def run(self, part: str, steps: list[Step]) -> Record:
        """Run a part's steps while there is time, and save its record."""
        began = time.monotonic()
        path = self.out / f"{part.replace('/', '-')}.json"
        record = Record(part, self.limit_s, machine=self._machine, gpu=self._gpu, notes=self.notes)
        record.predictions = PREDICTIONS.get(part.partition("/")[0], {})
        record.save(path)
        try:
            if self._missing:
                record.status, record.why = "not run", self._missing
                return record
            for step in steps:
                left_s = self.limit_s - (time.monotonic() - began)
                record.steps.append(Outcome(step.name, "cut off", "whatever ran it was killed"))
                record.save(path)
                record.steps[-1] = self._outcome(step, min(step.limit_s, left_s))
                record.save(path)
                print(f"  {step.name}: {_said(record.steps[-1])}", flush=True)
            record.status, record.why = _together(record.steps)
        except BaseException as error:
            record.status, record.why = "cut off", f"by {type(error).__name__}"
            if record.steps:
                record.steps[-1].result = self._measured(steps[len(record.steps) - 1])
            raise
        finally:
            record.seconds = round(time.monotonic() - began, 1)
            record.save(path)
        return record

    def _outcome(self, step: Step, limit_s: float) -> Outcome:
        if missing := _missing(step):
            return Outcome(step.name, "not run", missing)
        if limit_s < min(_LEFT_S, self.limit_s / 2):
            return Outcome(step.name, "not run", "its part's time was spent")
        if step.result:
            (self.out / step.result).unlink(missing_ok=True)
        began = time.monotonic()
        tool = (_found(step.under[0]) or "", *step.under[1:]) if step.under else ()
        status = self._done((*tool, sys.executable, *step.command), self._log(step), limit_s)
        seconds = round(time.monotonic() - began, 1)
        output = self._log(step).read_text(errors="replace")
        outcome = Outcome(step.name, "passed", "", seconds, " ".join((*step.under[:1], "python", *step.command)))
        outcome.command = plain(outcome.command, self.out)
        outcome.counts = counts_of(output) if "pytest" in step.command else {}
        if status is None:
            outcome.status, outcome.why = "cut off", f"killed after {limit_s:.0f} s"
        elif status == step.unavailable and _USAGE not in output:
            outcome.status, outcome.why = "not run", plain(output, self.out).strip().rpartition("\n")[2]
        elif status:
            outcome.status, outcome.why = "failed", f"status {status}"
        elif outcome.counts and not outcome.counts.get("passed"):
            outcome.status, outcome.why = "not run", "every test was skipped"
        if outcome.status != "passed":
            outcome.tail = plain(output, self.out)[-TAIL_CHARS:]
        outcome.result = self._measured(step)
        return outcome

    def _measured(self, step: Step) -> Any:
        """Return what a step has written so far."""
        with suppress(OSError, ValueError):
            return json.loads(plain((self.out / step.result).read_text(), self.out)) if step.result else None
        return None

    def _log(self, step: Step) -> Path:
        return self.out / f"{step.name}.log"

    def _done(self, command: Sequence[str], log: Path, limit_s: float) -> int | None:
        """Run a command and return its status; None if it was killed, with all that it started."""
        process = None
        with open(log, "wb") as output:
            try:  # from before it is started: a signal may come before Popen returns
                process = subprocess.Popen(
                    command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=ROOT,
                    env=self._environment, start_new_session=True,
                )  # fmt: skip
                return process.wait(limit_s)
            except subprocess.TimeoutExpired:
                return None
            finally:
                self._kill_all()
                if process is not None:
                    process.wait()

    def _kill_all(self) -> None:
        """Kill what a step has started, in any session: feeders are detached."""
        mine = f"{MARK}={self._mark}".encode()
        until = time.monotonic() + _KILL_S
        alive = True
        while alive and time.monotonic() < until:
            alive = False
            for environment in Path("/proc").glob("[0-9]*/environ"):
                with suppress(OSError):
                    if mine in environment.read_bytes().split(b"\0"):
                        os.kill(int(environment.parent.name), signal.SIGKILL)
                        alive = True
            time.sleep(0.05 * alive)

    def _gpu_found(self) -> tuple[dict[str, Any], str]:
        """Describe the GPU as torch sees it, in a child, as a driver may hang; and say why there is none."""
        driver = _first_line(Path("/proc/driver/nvidia/version"))
        log = self.out / "gpu.log"
        status = self._done((sys.executable, "-c", _GPU), log, 60)
        said = log.read_text(errors="replace").strip().splitlines()
        if status is None:
            return {"driver": driver}, "no GPU: the driver did not answer within 60 s"
        if status:
            return {"driver": driver}, f"no GPU: {plain(said[-1], self.out) if said else f'status {status}'}"
        found = {"driver": driver, **json.loads(said[-1])}
        return found, "" if found["names"] else "no GPU"


def described() -> tuple[dict[str, Any], str]:
    """Describe the machine and NVIDIA's libraries; and say what Penstock lacks."""
    try:
        import msgspec

        from penstock.runs.machine import describe
    except ImportError as error:
        return {"python": platform.python_version()}, f"{error}; WHEELS= names a folder with wheels"
    machine: dict[str, Any] = msgspec.to_builtins(describe())
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):
            machine["libraries"][name] = version(name)
    return machine, ""


def unpack(wheels: Path, to: Path) -> list[str]:
    """Unpack the wheels that this Python can use; return a note for each other one."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    refused: list[str] = []
    for wheel in sorted(wheels.glob("*.whl")):
        if not _fits(wheel.stem):
            refused.append(f"{wheel.name} is not for Python {sys.version_info.major}.{sys.version_info.minor}")
            continue
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(to)
    return refused


def _fits(stem: str) -> bool:
    """Whether a wheel's tags fit this Python (PyPA, "Platform compatibility tags"); its platform is ignored."""
    pythons, abi = stem.split("-")[-3:-1]
    minor = sys.version_info.minor
    tags = pythons.split(".")
    if abi == "abi3":
        return any(tag.startswith("cp3") and int(tag[3:]) <= minor for tag in tags)
    return bool({f"cp3{minor}", f"py3{minor}", "py3"}.intersection(tags))


def _missing(step: Step) -> str:
    for module in step.modules:
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return f"{module} is not installed"
    if step.under and _found(step.under[0]) is None:
        return f"{step.under[0]} is not installed"
    return ""


def _found(tool: str) -> str | None:
    return shutil.which(tool, path=os.pathsep.join([os.environ.get("PATH", ""), _TOOLS]))


def _together(steps: list[Outcome]) -> tuple[str, str]:
    """Return a part's status: the worst of its steps', or ``not run`` if no step has run."""
    for status in ("failed", "cut off", "passed"):
        if those := [step for step in steps if step.status == status]:
            return status, "" if status == "passed" else ", ".join(step.step for step in those)
    return "not run", "; ".join(dict.fromkeys(step.why for step in steps))


def _said(outcome: Outcome | Record) -> str:
    counted = ", ".join(f"{n} {what}" for what, n in getattr(outcome, "counts", {}).items())
    return f"{outcome.status}{f': {outcome.why}' if outcome.why else ''}{f' ({counted})' if counted else ''}"


def _first_line(path: Path) -> str:
    try:
        return path.read_text().splitlines()[0]
    except OSError:
        return "none"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``make gpu``; the status is 1 if anything failed or was cut off."""
    asked = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    asked.add_argument("--part", default="all", help=f"all, or of {', '.join(PARTS)}; tests/readers is one step")
    asked.add_argument("--out", type=Path, default=ROOT / "build" / "gpu")
    asked.add_argument("--wheels", type=Path)
    asked.add_argument("--limit-s", type=float, default=PART_S)
    given = asked.parse_args(arguments)
    out = given.out.resolve()
    chosen: dict[str, list[Step]] = {}
    for part in PARTS if given.part == "all" else given.part.split(","):
        name, _, only = part.partition("/")
        steps = [step for step in PARTS[name](out) if only in {"", step.name}] if name in PARTS else []
        if not steps:
            asked.error(f"--part {part}: there is none; parts are {', '.join(PARTS)}")
        chosen[part] = steps
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bench = Bench(out, given.wheels, given.limit_s)
    hurt = False
    for part, steps in chosen.items():
        print(part, flush=True)
        record = bench.run(part, steps)
        print(f"{part}: {_said(record)}", flush=True)
        hurt |= record.status in {"failed", "cut off"}
    return int(hurt)


if __name__ == "__main__":
    sys.exit(main())
