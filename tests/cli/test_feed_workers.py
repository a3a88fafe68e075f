"""``penstock feed --workers`` reaches whoever has workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cli.conftest import started
from tests.sources.images.pictures import colours

import penstock

pytestmark = pytest.mark.whole

TORCH = """
from torch.utils.data import DataLoader
def make():
    return DataLoader(range(40), batch_size=4, num_workers=2)
"""


@pytest.fixture
def feed() -> Iterator[Callable[..., str]]:
    """Feeds an epoch of something, and returns what that is."""
    with ExitStack() as stack:

        def start(*words: str) -> str:
            process = started("feed", *words, "--name", "some", "--linger", "0")
            stack.callback(process.communicate, timeout=20)
            with penstock.attach("some", wait_s=100) as loader:
                assert len(list(loader)) == 10
                return penstock.feeds()[0].source

        yield start


@pytest.mark.parametrize("words", [["workers=1"], ["--workers=1"]])
def test_images_are_decoded_by_as_many(feed: Callable[..., str], tmp_path: Path, words: list[str]) -> None:
    colours(tmp_path, 40)
    assert "in 1 workers" in feed(f"images:{tmp_path}", "size=16", "batch_size=4", *words)


def test_a_torch_loader_has_as_many_whatever_it_sets(feed: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "torch_loader.py"
    path.write_text(TORCH)
    assert ", 1 workers)" in feed(f"{path}:make", "--workers", "1")
