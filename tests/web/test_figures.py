"""Numbers as the page shows them; its own module computes them here, without a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import penstock.web

FIGURES = Path(penstock.web.__file__).with_name("page") / "figures.js"
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed")


def texts(*expressions: str) -> list[object]:
    program = f"import * as f from {json.dumps(FIGURES.as_uri())};\n"
    program += f"console.log(JSON.stringify([{', '.join(expressions)}]))"
    command = [NODE or "", "--input-type=module", "-e", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_whole_numbers_are_not_rounded():
    shown = texts(*(f"f.number({value})" for value in (99_999, 1_234_567, -42, 0, "-0", 12_345_678_901)))
    assert shown == ["99,999", "1,234,567", "-42", "0", "0", "12,345,678,901"]
    assert texts('f.shown("", 99999)', 'f.shown("bytes", 99999)') == ["99,999", "97.7 KiB"]


def test_other_numbers_have_three_digits():
    shown = texts(*(f"f.number({value})" for value in (0.12345, 12.345, 12_345.6, 1_234_567.8, 0.00012, "null")))
    assert shown == ["0.123", "12.3", "12,300", "1.23e+6", "1.20e-4", ""]


def test_ticks_have_as_many_digits_as_tell_them_apart():
    ticks = {
        "'bytes', [22.0371, 22.0372].map((gib) => gib * 2 ** 30)": ["22.0371 GiB", "22.0372 GiB"],
        "'bytes', [1, 2, 3].map((gib) => gib * 2 ** 30)": ["1 GiB", "2 GiB", "3 GiB"],
        "'', [99998, 99999, 100000]": ["99,998", "99,999", "100,000"],
        "'', [1000000.25, 1000000.5]": ["1.00000025e+6", "1.00000050e+6"],
        "'', [0.5, 1, 1.5]": ["0.5", "1", "1.5"],
    }
    assert texts(*(f"f.ticksOf({each})" for each in ticks)) == [*ticks.values()]
