"""The process of a job on its node, without a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.runs.elsewhere import NODE
from penstock.runs.elsewhere.node import Began, EndedThere, JobOrder, Lines, Packet, Printed, Words
from penstock.runs.record import GroupPlan, RunPlan
from penstock.runs.store import Store

PRINTS = "while True: print('more')"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    words = [sys.executable, "-m", NODE]
    with subprocess.Popen(words, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def write(node: subprocess.Popen[bytes], message: JobOrder | Words) -> None:
    assert node.stdin is not None
    node.stdin.write(msgspec.json.encode(message) + b"\n")


def packets_read_slowly(node: subprocess.Popen[bytes]) -> Iterator[Packet]:
    """Yield a node's packets; its runs print faster than this reads them."""
    assert node.stdout is not None
    lines = Lines()
    while data := os.read(node.stdout.fileno(), 256):
        yield from (msgspec.json.decode(line, type=Packet) for line in lines.add(data))
        time.sleep(0.001)


def test_a_run_that_prints_without_pause_can_be_stopped(node, tmp_path: Path) -> None:
    plan = RunPlan(command=(sys.executable, "-c", PRINTS), name="prints", directory="/")
    with Store.open(tmp_path / "store") as store:
        (run,) = store.add(GroupPlan(name="group", runs=(plan,)))
    write(node, JobOrder([run], (), sys.executable))
    packets = packets_read_slowly(node)
    assert isinstance(next(packets), Began)
    for _ in range(20):
        next(packet for packet in packets if isinstance(packet, Printed))
    write(node, Words(run.id, {"end": "as asked"}))
    (ended,) = [packet for packet in packets if isinstance(packet, EndedThere)]
    assert (ended.id, ended.status, ended.reason) == (run.id, "killed", "as asked")
