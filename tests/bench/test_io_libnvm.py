"""``penstock bench io`` on a disk under BaM's kernel module: a fake one, in the process that measures."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from penstock.bench.io.plan import IoSettings
from penstock.bench.io.run import IoReport, run
from penstock.errors import BadSetting

SHORT = IoSettings(bs_bytes=(4096, 65536), qd=(8,), threads=(2,), runtime_s=0.1, warm_up_s=0.02)

FAKE = """
from penstock.io.open import open_reader
from penstock.io.nvme import module
from tests.fakes.nvme_disk import FakeDisk, FakeModule
disk = FakeDisk({1: bytes(1 << 20)}).__enter__()
module.LibnvmModule = lambda path: FakeModule(disk, path)
"""


def measured(settings: IoSettings, path: str = "/dev/libnvm0") -> IoReport:
    return run(settings, path, lambda *_: None)


def test_a_disk_is_measured_at_its_own_size_and_is_always_cold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fake_disk.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    report = measured(msgspec.structs.replace(SHORT, readers="fake_disk:open_reader", cold=True))
    assert [row.bs_bytes for row in report.rows] == [4096, 65536]
    for row in report.rows:
        assert (row.mech, row.cold) == ("gpu", True)
        assert row.iops > 0, row.note
        assert "disk-served: FAKE DISK" in row.path_taken
    assert report.remarks == ["--cold says nothing about /dev/libnvm0: it is not in the page cache"]


def test_a_disk_that_is_not_there_is_told_in_each_row() -> None:
    for row in measured(SHORT, "/dev/libnvm99").rows:
        assert row.iops == 0
        assert "/dev/libnvm99 is not there" in row.note


@pytest.mark.parametrize("mech", [("uring",), ("gpu", "posix")])
def test_a_mechanism_that_cannot_read_such_a_disk_is_refused(mech: tuple[str, ...]) -> None:
    with pytest.raises(BadSetting, match=r"--mech .*/dev/libnvm0 is a disk under BaM's.*only mech 'gpu' reads"):
        measured(msgspec.structs.replace(SHORT, mech=mech))
