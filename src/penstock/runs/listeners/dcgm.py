"""Listens to GPUs by NVIDIA's DCGM, where it runs: before Hopper, nothing else measures the multiprocessors."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress

from penstock.linux.process import die_with_parent
from penstock.runs.listeners.contract import Listener, Sample, Tick, Values

_FIELDS = {
    1001: ("gr_engine_active_percent", 100),
    1002: ("sm_active_percent", 100),
    1003: ("sm_occupancy_percent", 100),
    1004: ("tensor_percent", 100),
    1005: ("dram_percent", 100),
    1009: ("pcie_tx_bytes_per_s", 1),
    1010: ("pcie_rx_bytes_per_s", 1),
    1011: ("nvlink_tx_bytes_per_s", 1),
    1012: ("nvlink_rx_bytes_per_s", 1),
}
"""DCGM_FI_PROF_…: names of series, and the unit of each. Activities are parts from 0 to 1."""
_COMMAND = ("dcgmi", "dmon", "-e", ",".join(map(str, _FIELDS)), "-d", "1000")


class DcgmListener(Listener):
    """What ``dcgmi dmon`` prints of each GPU of the machine, once a second: ``dcgm.N`` by DCGM's numbers.

    It needs NVIDIA's nv-hostengine, and reads from a process of its own until it is closed.
    """

    name = "dcgm"

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._last_words = ""

    def unavailable(self) -> str | None:
        if shutil.which(_COMMAND[0]) is None:
            return "dcgmi is not on the PATH: install NVIDIA's DCGM (datacenter-gpu-manager)"
        return None

    def sample(self, tick: Tick) -> Sample:
        process = self._process = self._process or _started()
        ended = process.poll()
        gauges = self._read(process)
        if ended is None:
            return Sample(Values(gauges=gauges))
        how = f"by {signal.Signals(-ended).name}" if ended < 0 else f"with exit code {ended}"
        why = f": {self._last_words}" if self._last_words else ""
        return Sample(notes=(f"dcgmi dmon has ended {how}, and is not started again{why}",))

    def close(self) -> None:
        if self._process and self._process.stdout:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def _read(self, process: subprocess.Popen[bytes]) -> dict[str, float]:
        """Return the newest values that have come. A line that has no values is an error, or a heading."""
        assert process.stdout
        while chunk := process.stdout.read(1 << 16):
            self._unread += chunk
        *lines, self._unread = self._unread.split(b"\n")
        found: dict[str, float] = {}
        for line in lines:
            words = line.decode(errors="replace").split()
            if words[:1] == ["GPU"] and len(words) == 2 + len(_FIELDS):
                found |= _values(words[1], words[2:])
            elif words and words[0] not in {"#Entity", "ID"}:
                self._last_words = " ".join(words)
        return found


def _started() -> subprocess.Popen[bytes]:
    parent = os.getpid()
    process = subprocess.Popen(
        _COMMAND,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509  # it only calls the kernel
    )
    assert process.stdout
    os.set_blocking(process.stdout.fileno(), False)
    return process


def _values(gpu: str, words: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for (name, unit), word in zip(_FIELDS.values(), words, strict=True):
        with suppress(ValueError):  # N/A: this GPU does not report it, or not yet
            found[f"dcgm.{gpu}.{name}"] = float(word) * unit
    return found
