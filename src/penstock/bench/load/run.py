"""Measures loaders of images in turns, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import msgspec

from penstock.bench.load import arms
from penstock.bench.load.arms import ARMS
from penstock.errors import BadSetting
from penstock.runs.machine import Machine

_START_S = 120.0
_PROBE = "import sys\nfrom importlib.util import find_spec\nfor name in sys.argv[1:]: assert find_spec(name)"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured."""

    folder: str
    size: int
    batch_size: int
    workers: int
    seconds: float
    repeats: int


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of one loader.

    Attributes:
        cpu_ms_per_image: CPU time of the process and its workers.
        first_batch_s: Time from its start to the first batch.
        decoder: What it decodes with, and its version.
    """

    images_per_s: float
    cpu_ms_per_image: float
    first_batch_s: float
    decoder: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, by loader.

    Attributes:
        absent: Loaders that could not be measured, and why.
    """

    settings: Settings
    measured: dict[str, list[Measured]]
    absent: dict[str, str]
    machine: Machine

    def images_per_s(self, arm: str) -> float:
        """Return the median of a loader's measurements."""
        return median(one.images_per_s for one in self.measured[arm])

    def ratios(self, arm: str, to: str = "penstock") -> list[float]:
        """Return how many times as fast as another a loader was, turn by turn."""
        pairs = zip(self.measured[arm], self.measured[to], strict=False)
        return [one.images_per_s / other.images_per_s for one, other in pairs]


def measure(
    settings: Settings,
    wanted: Sequence[str],
    pythons: Mapping[str, str],
    machine: Machine,
    told: Callable[[str], None],
) -> Report:
    """Measure loaders in turns.

    Args:
        settings: What is measured.
        wanted: Loaders, by their names in ``ARMS``.
        pythons: Programs of the environments in which some of them are installed.
        machine: Where this runs.
        told: Called with what is measured next.

    Raises:
        BadSetting: the folder has no JPEG, or Penstock's own loader cannot run.
    """
    if not arms.images_in(settings.folder):
        raise BadSetting(f"{settings.folder}: no JPEGs (*.jpg, *.jpeg) in it or below")
    absent = {arm: why for arm in wanted if (why := _missing(arm, pythons.get(arm, sys.executable)))}
    measured: dict[str, list[Measured]] = {arm: [] for arm in wanted if arm not in absent}
    for turn in range(settings.repeats):
        for arm in list(measured):
            told(f"{turn + 1} of {settings.repeats}: {ARMS[arm].name}")
            try:
                measured[arm].append(_measured(arm, settings, pythons.get(arm, sys.executable)))
            except subprocess.SubprocessError as error:
                absent[arm] = _why(error)
                del measured[arm]
    if "penstock" in absent:
        raise BadSetting(f"Penstock's loader cannot run: {absent['penstock']}")
    return Report(settings=settings, measured=measured, absent=absent, machine=machine)


def _missing(arm: str, python: str) -> str:
    """Say what is not installed; empty if all is."""
    modules = ARMS[arm].modules
    try:
        probed = subprocess.run([python, "-c", _PROBE, *modules], capture_output=True, check=False)
    except OSError as error:
        return f"{python}: {error.strerror}"
    return "" if probed.returncode == 0 else f"not installed ({', '.join(modules)})"


def _measured(arm: str, settings: Settings, python: str) -> Measured:
    folder, size, batch_size, workers, seconds, _ = msgspec.structs.astuple(settings)
    words = map(str, (arms.__file__, arm, folder, size, batch_size, workers, seconds))
    limit_s = _START_S + 4 * seconds
    run = subprocess.run([python, *words], capture_output=True, text=True, timeout=limit_s, check=True)
    return msgspec.convert(json.loads(run.stdout.splitlines()[-1]), Measured)


def _why(error: subprocess.SubprocessError) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = str(error.stderr).strip().splitlines()
        return f"ended with status {error.returncode}: {lines[-1] if lines else 'it said nothing'}"
    return "gave nothing in time"
