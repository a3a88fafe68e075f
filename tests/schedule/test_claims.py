"""One scheduler at a time uses a GPU: claims, by real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BadSetting
from penstock.schedule.ledger import claimed

CLAIMER = """
import sys
from penstock.schedule.ledger import claimed
with claimed(sys.argv[1:]):
    print("claimed", flush=True)
    input()
"""


@pytest.fixture
def claim() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a process that claims names."""
    with ExitStack() as stack:

        def start(*names: str) -> subprocess.Popen[str]:
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", CLAIMER, *names], **pipes))
            assert process.stdout and process.stdout.readline() == "claimed\n"
            return process

        yield start


def test_who_comes_second_is_told_who_was_first_and_claims_nothing(claim: Any, feeds_directory: Path):
    first = claim("GPU-1")
    with (
        pytest.raises(
            BadSetting, match=rf"another penstock schedule run \(process {first.pid}\) uses GPU-1: wait for it"
        ),
        claimed(["cpu", "GPU-1", "GPU-0"]),
    ):
        pass
    with claimed(["GPU-0", "cpu", "gpu 0 (simulated)"]):
        assert len(list(feeds_directory.iterdir())) == 4
    first.communicate("\n")
    with claimed(["GPU-1"]):
        pass
    assert not list(feeds_directory.iterdir())


def test_a_claim_ends_with_its_process(claim: Any):
    first = claim("GPU-1")
    first.kill()
    first.wait()
    second = claim("GPU-1")
    with pytest.raises(BadSetting, match=f"process {second.pid}"), claimed(["GPU-1"]):
        pass
    second.communicate("\n")


def test_a_claim_is_not_handed_on_to_what_the_process_starts(feeds_directory: Path):
    with claimed(["cpu"]), ExitStack() as ended:
        child = ended.enter_context(subprocess.Popen(["sleep", "1000"], close_fds=False))
        ended.callback(child.kill)
        (path,) = feeds_directory.iterdir()
        assert path.read_text() == str(os.getpid())
        opened = [os.readlink(each) for each in Path(f"/proc/{child.pid}/fd").iterdir()]
        assert str(path) not in opened
    with claimed(["cpu"]):
        pass
