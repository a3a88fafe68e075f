"""``LauncherElsewhere`` where srun is a script of the test's own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.runs.elsewhere.jobs import JobPlace
from penstock.runs.elsewhere.launcher import LauncherElsewhere
from penstock.runs.elsewhere.node import Began, EndedThere, FilePart, Packet, Printed
from penstock.runs.record import GroupPlan, RunPlan, RunRecord
from penstock.runs.store import Store

SENDS = """
import sys

order = sys.stdin.readline()
print({packets!r}, flush=True)
"""
WAITS_FOR_ITS_TURN = """
import sys
import time
from pathlib import Path

while not Path({turn!r}).exists():
    time.sleep(0.01)
order = sys.stdin.readline()
print({packets!r}, flush=True)
print(f"{{len(order)}} characters", file=sys.stderr)
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as store:
        yield store


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a script the only program on the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))

    def make(script: str) -> None:
        (tmp_path / "programs").mkdir()
        (tmp_path / "programs" / "srun").write_text(f"#!{sys.executable} -IS\n{script}")
        (tmp_path / "programs" / "srun").chmod(0o700)

    return make


def add(store: Store, number: int, *arguments: str) -> list[RunRecord]:
    plans = [RunPlan(command=("true", *arguments), name=f"run-{i}", directory="/") for i in range(number)]
    return store.add(GroupPlan(name="group", runs=tuple(plans)))


def lines(*packets: Packet) -> str:
    return "\n".join(msgspec.json.encode(packet).decode() for packet in packets)


def run_all(launcher: LauncherElsewhere, records: list[RunRecord]) -> None:
    for record in records:
        launcher.start(record, ())
    while launcher.running:
        for _ in launcher.events():
            pass


@pytest.mark.usefixtures("srun")
@pytest.mark.parametrize("looks", [True, False], ids=["that is asked", "that closes"])
def test_runs_whose_command_cannot_start_have_failed_after_a_launcher(store: Store, looks: bool) -> None:
    records = add(store, 2)
    with LauncherElsewhere(store, JobPlace("slurm")) as launcher:
        for record in records:
            launcher.start(record, ())
        while looks and launcher.running:
            assert len([*launcher.events()]) == 2
    for run in store.runs():
        assert (run.status, run.exit_code, run.began) == ("failed", None, None)
        assert run.reason.startswith("never began: ") and "srun" in run.reason


def test_nothing_waits_for_a_job_that_has_not_read_its_order(srun, store: Store, tmp_path: Path) -> None:
    (record,) = add(store, 1, "x" * 300_000)
    packets = lines(Began(record.id, 1), EndedThere(record.id, "finished", 0, ""))
    srun(WAITS_FOR_ITS_TURN.format(turn=str(tmp_path / "turn"), packets=packets))
    with LauncherElsewhere(store, JobPlace("slurm")) as launcher:
        launcher.start(record, ())
        for _ in range(2):
            assert list(launcher.events(0)) == []
        (tmp_path / "turn").touch()
        run_all(launcher, [])
    assert store.run(record.id).status == "finished"


def test_a_node_writes_into_the_folders_of_its_own_runs_only(srun, store: Store, tmp_path: Path) -> None:
    mine, others = add(store, 2)
    home = store.folder_of(mine.id)
    outside = ["../escaped", "files/../../escaped", str(tmp_path / "escaped"), f"../{others.id}/escaped"]
    srun(
        SENDS.format(
            packets=lines(
                Began(mine.id, 1),
                Began(others.id, 1),
                Printed(others.id, 1, b"not its own"),
                *(FilePart(id, "escaped", 0, b"bytes") for id in (others.id, "..", "../..", str(tmp_path))),
                *(FilePart(mine.id, path, 0, b"bytes") for path in outside),
                FilePart(mine.id, "files/made", 0, b"bytes"),
                EndedThere(others.id, "finished", 0, ""),
                EndedThere(mine.id, "finished", 0, ""),
            )
        )
    )
    with LauncherElsewhere(store, JobPlace("slurm")) as launcher:
        run_all(launcher, [mine])
    assert [run.status for run in store.runs()] == ["finished", "waiting"]
    assert (home / "files" / "made").read_bytes() == b"bytes"
    assert [*tmp_path.rglob("escaped")] == [] and not (tmp_path.parent / "escaped").exists()
