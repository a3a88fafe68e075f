"""Deaths among unmodified scripts on one feed, and of a feeder of images, which change no sample and no pixel."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests.autosharing.running import Scripts, check_like
from tests.forked import Forked, eventually
from tests.sources.images.pictures import textures

import penstock
from penstock.contracts import Cursor

pytestmark = pytest.mark.whole


WORDS = [["plain", "--pause", "0.1", "--batch-size", size] for size in ("4", "7")]


def two(scripts: Scripts) -> list[Forked]:
    """Start two with different batch sizes; return them in the middle of their first epoch."""
    first = scripts.start(0, "loops.py", *WORDS[0])
    eventually(lambda: "reads feed" in first.output or first.ended, "the first never read")
    second = scripts.start(1, "loops.py", *WORDS[1])
    eventually(lambda: "reads feed" in second.output or second.ended, "the second never read")
    return [first, second]


def test_runs_whose_feeder_is_killed_replace_it_whoever_started_it(scripts: Scripts):
    first, second = two(scripts)
    first.kill()  # it had started the feeder, and decided the rows of its blocks
    (feed,) = penstock.feeds()
    os.kill(feed.pid, signal.SIGKILL)
    assert second.wait() == 0, second.output
    assert feed.name in {each.name for each in penstock.feeds()}
    check_like(scripts.seen(1), scripts.alone(*WORDS[1]))


def test_a_run_that_is_killed_leaves_the_other_as_it_was(scripts: Scripts):
    first, second = two(scripts)
    second.kill()
    assert first.wait() == 0, first.output
    check_like(scripts.seen(0), scripts.alone(*WORDS[0]))


def make(folder: Path) -> penstock.ImageSource:
    return penstock.ImageSource(folder, size=16, batch_size=8, workers=1, jitter=(0.4, 0.4, 0.4, 0.1))


def given(loader: penstock.Loader, kill_after: int | None) -> dict[int, np.ndarray]:
    """The pixels of each image in an epoch, whose feeder is killed after some batches."""
    found: dict[int, np.ndarray] = {}
    for step, (images, _labels) in enumerate(loader):
        for image, pixels in zip(loader.ids.tolist(), images, strict=True):
            assert image not in found
            found[image] = pixels
        if step == kill_after:
            os.kill(loader.statistics().feeder_pid, signal.SIGKILL)
    return found


@pytest.mark.usefixtures("forks_feeders")
@pytest.mark.parametrize("part", [None, range(1, 40, 3)])
def test_a_feeder_of_images_that_is_killed_is_replaced_and_no_pixel_differs(tmp_path, part):
    textures(tmp_path / "images")
    alone = make(tmp_path / "images")
    wanted = set(range(40) if part is None else part)
    with penstock.share(
        partial(make, tmp_path / "images"), "images", 3, select=part, linger=0.0, window="128KiB"
    ) as loader:
        for cycle, kill_after in enumerate((0, None, 2)):
            found = given(loader, kill_after)
            expected = {
                image: pixels
                for block in alone.open(Cursor(cycle, 0))
                for image, pixels in zip(block.ids.tolist(), block.tree[0], strict=True)
            }
            assert found.keys() == wanted
            assert all((found[image] == expected[image]).all() for image in found)
        assert loader.statistics().failovers >= 1
    alone.close()
    workers = psutil.Process().children()
    assert not [worker for worker in workers if "penstock.sources.samples.worker" in worker.cmdline()]
