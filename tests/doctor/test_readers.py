"""The probe says of every mechanism whether it works here, and why not."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest
from tests.fakes.nvme_disk import FakeDisk, FakeModule

from penstock.doctor import devices as probe
from penstock.doctor.devices import Finding
from penstock.errors import ReaderUnavailable
from penstock.io import open as mechanisms
from penstock.io.nvme import module
from penstock.io.nvme.admin import CC, CSTS, FATAL, OFF_THE_BUS
from penstock.io.open import MECHANISMS
from penstock.io.queue import ThreadQueue


def probed(folder: Path) -> dict[str, Finding]:
    return {each.what: each for each in probe.probe(folder)}


def test_every_mechanism_is_tried_and_no_file_stays(tmp_path: Path) -> None:
    found = probed(tmp_path)
    assert list(found) == [f"reader {mech}" for mech in MECHANISMS]
    assert found["reader posix"].verdict == "works"
    assert "page cache" in found["reader posix"].found
    assert not list(tmp_path.iterdir())


def test_a_mechanism_that_cannot_be_had_is_limited_with_reason_and_remedy(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "obstore", None)
    found = probed(tmp_path)["reader object"]
    assert found.verdict == "limited"
    assert found.found.endswith("not installed")
    assert found.remedy == 'pip install "penstock[s3]"'


def test_other_bytes_than_those_of_the_file_are_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Liar(ThreadQueue):
        def read(self, file: int, offset: int, nbytes: int, address: int) -> int:
            return super().read(file, offset, nbytes - 1, address + 1) + 1

    monkeypatch.setattr(mechanisms, "ThreadQueue", Liar)
    found = probed(tmp_path)["reader posix"]
    assert (found.verdict, found.remedy) == ("fails", "do not read with 'posix'")


def test_a_folder_that_cannot_be_written_is_told() -> None:
    (found,) = probe.probe("/proc")
    assert found.verdict == "limited"
    assert "/proc" in found.found


def test_a_disk_under_bams_module_is_looked_at_but_not_reset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    disk = FakeDisk({1: bytes(4096)})
    monkeypatch.setattr(probe, "devices", lambda: ["/dev/libnvm0"])
    monkeypatch.setattr(module, "LibnvmModule", lambda path: FakeModule(disk, path))
    for status, verdict, what in (
        (0, "works", "NVMe 1.4, queues of up to 1024 entries"),
        (FATAL, "works", "it has failed, and would be reset"),
        (OFF_THE_BUS, "fails", "does not answer on the bus"),
    ):
        disk.registers[CSTS] = status
        *_, found = probe.probe(tmp_path)
        assert (found.what, found.verdict) == ("disk /dev/libnvm0", verdict)
        assert what in found.found
    assert not disk.registers[CC]
    assert not disk.taken


def test_a_disk_that_cannot_be_opened_is_limited_with_reason_and_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(probe, "devices", lambda: ["/dev/libnvm99"])
    *_, found = probe.probe(tmp_path)
    assert (found.what, found.verdict) == ("disk /dev/libnvm99", "limited")
    assert "is not there" in found.found
    assert found.remedy.startswith("load the module")


def test_the_remedy_is_the_errors_own_whatever_its_text_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    told = "io_uring: error 1; error 2", "read with mech='direct'; it works everywhere"

    def refused(depth: int, memory: object) -> None:
        raise ReaderUnavailable(*told)

    monkeypatch.setattr(mechanisms, "UringQueue", refused)
    found = probed(tmp_path)["reader uring"]
    assert (found.found, found.remedy) == told


def test_an_error_says_its_remedy_last_and_keeps_it_on_its_way_to_another_process() -> None:
    error = ReaderUnavailable("no such hardware", "buy it")
    assert str(error) == "no such hardware; buy it"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.why, again.remedy) == (str(error), "no such hardware", "buy it")
    assert str(ReaderUnavailable("nothing helps")) == "nothing helps"
