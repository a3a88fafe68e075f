"""What DCGM's program prints becomes series, over a program in its place that prints what the real one does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.forked import eventually

from penstock.runs.listeners.contract import Sample, Tick
from penstock.runs.listeners.gpu import DcgmListener
from penstock.testing.listener import ListenerContract

HEADING = """\
#Entity   GRACT      SMACT      SMOCC      TENSO      DRAMA      PCITX        PCIRX        NVLTX      NVLRX
ID
"""
FIRST = """\
GPU 0     N/A        N/A        N/A        N/A        N/A        N/A          N/A          N/A        N/A
"""
LATER = """\
GPU 1     0.981      0.913      0.442      0.305      0.512      104857600    2097152000   0          0
GPU 0     0.500      0.250      0.125      N/A        0.000      1            2            N/A        N/A
"""
TICK = Tick(1e9, (), {}, 0.0)
Installed = Callable[[str], None]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Put a ``dcgmi`` on the PATH that notes its words and does this."""

    def install(script: str) -> None:
        program = tmp_path / "dcgmi"
        program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\n{script}\n')
        program.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return install


def printing(text: str) -> str:
    return f"cat <<'END'\n{text}END\nexec sleep 1000"


@pytest.fixture
def listener() -> Iterator[DcgmListener]:
    made = DcgmListener()
    yield made
    made.close()


def until(listener: DcgmListener, wanted: Callable[[Sample], object]) -> Sample:
    found: list[Sample] = []

    def told() -> bool:
        found.append(listener.sample(TICK))
        return bool(wanted(found[-1]))

    eventually(told)
    return found[-1]


class TestDcgm(ListenerContract):
    @pytest.fixture(autouse=True)
    def its_program(self, installed: Installed) -> None:
        installed(printing(HEADING + LATER))

    def make(self) -> Any:
        return DcgmListener()


def test_what_dcgm_prints_becomes_series_in_our_units(installed, listener, tmp_path):
    installed(printing(HEADING + FIRST + HEADING + LATER))
    gauges = until(listener, lambda sample: sample.host.gauges).host.gauges
    assert (tmp_path / "words").read_text() == "dmon -e 1001,1002,1003,1004,1005,1009,1010,1011,1012 -d 1000\n"
    assert gauges == {
        "dcgm.1.gr_engine_active_percent": pytest.approx(98.1),
        "dcgm.1.sm_active_percent": pytest.approx(91.3),
        "dcgm.1.sm_occupancy_percent": pytest.approx(44.2),
        "dcgm.1.tensor_percent": pytest.approx(30.5),
        "dcgm.1.dram_percent": pytest.approx(51.2),
        "dcgm.1.pcie_tx_bytes_per_s": 104857600,
        "dcgm.1.pcie_rx_bytes_per_s": 2097152000,
        "dcgm.1.nvlink_tx_bytes_per_s": 0,
        "dcgm.1.nvlink_rx_bytes_per_s": 0,
        "dcgm.0.gr_engine_active_percent": 50,
        "dcgm.0.sm_active_percent": 25,
        "dcgm.0.sm_occupancy_percent": 12.5,
        "dcgm.0.dram_percent": 0,
        "dcgm.0.pcie_tx_bytes_per_s": 1,
        "dcgm.0.pcie_rx_bytes_per_s": 2,
    }
    assert listener.sample(TICK) == Sample()  # nothing new has come


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'Error: no host'; exit 255", "with exit code 255, and is not started again: Error: no host"),
        ("kill -9 $$", "by SIGKILL, and is not started again"),
    ],
)
def test_its_end_is_one_sentence_with_its_last_words(installed, listener, script: str, said: str) -> None:
    installed(script)
    sample = until(listener, lambda sample: sample.notes)
    assert sample.notes == (f"dcgmi dmon has ended {said}",)
    assert listener.sample(TICK).notes == sample.notes


def test_without_dcgm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, listener: DcgmListener) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "datacenter-gpu-manager" in str(listener.unavailable())
