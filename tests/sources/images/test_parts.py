"""Blocks of images that several workers make, a part each: as one worker makes them, bit for bit."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.sources.images.pictures import jpeg, labelled, noise

from penstock import ImageSource
from penstock.contracts import Cursor, SourceBlock
from penstock.errors import SourceError
from penstock.memory.slots import OwnSlots
from penstock.sources.order import Planned
from penstock.sources.samples.blocks import parts_of

IMAGES = 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    labelled(folder, (jpeg(noise(9, 9, number), "444") for number in range(IMAGES)))
    return folder


def made(folder: Path, rows: int, *, whole: bool = False, workers: int = 2, **options: Any) -> ImageSource:
    source = ImageSource(folder, size=6, batch_size=rows, workers=workers, crops=2, seed=5, **options)
    if whole:
        source._blocks._recipe = replace(source._blocks._recipe, part_rows=0)
    return source


def blocks(source: ImageSource, at: Cursor = Cursor(0, 0), wanted: Any = None) -> list[SourceBlock]:  # noqa: B008
    with closing(source), closing(source.open(at, wanted)) as found:
        return [*found]


def same(one: SourceBlock, other: SourceBlock) -> bool:
    both = (None, None) if one.tree is None else zip(one.tree, other.tree, strict=True)
    leaves = all(np.array_equal(mine, its) for mine, its in both if mine is not None) if one.tree else True
    places = [(each.sample, each.rows, each.ids.tolist(), (each.tree is None)) for each in (one, other)]
    return places[0] == places[1] and leaves


@given(st.integers(1, 300), st.none() | st.sets(st.integers(0, 299)), st.sampled_from([0, 1, 32]))
def test_parts_are_cut_at_places_of_the_block_and_have_each_wanted_row_once(rows, kept, part_rows):
    which = None if kept is None else np.array(sorted(each for each in kept if each < rows), np.int64)
    count = rows if which is None else len(which)
    found = [*parts_of(Planned(0, rows, np.arange(count), which), part_rows)]
    assert [row for _, its in found for row in range(its.start, its.stop)] == [*range(count)]
    for (first, behind), its in found:
        assert first % (part_rows or rows) == 0 and 0 < behind - first <= (part_rows or rows)
        assert its.start < its.stop, "a part without wanted rows is none"
        places = np.arange(rows)[its] if which is None else which[its]
        assert first <= places[0] and places[-1] < behind


def choosing(which: str) -> Any:
    """Wants rows of a block by their places there."""
    by_name: dict[str, Any] = {
        "every other": lambda at: at % 2 == 0,
        "none of the second part": lambda at: (at < 32) | (at >= 64),
        "one": lambda at: at == 31,
        "none": lambda at: at < 0,
    }
    return lambda sample, ids: by_name[which](np.arange(len(ids)))


@pytest.mark.parametrize("rows", [1, 31, 33, 129])
@pytest.mark.parametrize("which", [None, "every other", "none of the second part", "one", "none"])
def test_a_block_of_parts_is_the_one_that_one_worker_makes(folder, rows, which):
    at = Cursor(1, IMAGES - 2) if rows == 1 else Cursor(1, rows)  # as after a resume
    wanted = which and choosing(which)
    one, other = (blocks(made(folder, rows, whole=whole), at, wanted) for whole in (True, False))
    assert len(one) == len(other) > 0
    assert all(map(same, one, other))


@pytest.fixture
def damaged(folder: Path, tmp_path: Path) -> Path:
    """With an image that cannot be decoded in each part of each block of 129."""
    source = made(folder, 129)
    names = source._data.records.names
    with closing(source), closing(source.open(Cursor(0, 0))) as found:
        ids = [block.ids[place] for block in found for place in range(5, block.rows, 32)]
    bad = {Path(names[id]).name for id in ids}
    copy = tmp_path / "images"
    for image in folder.rglob("*.jpg"):
        to = copy / image.parent.name / image.name
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(b"no image" if image.name in bad else image.read_bytes())
    return copy


def test_a_bad_image_in_each_part_is_black_in_its_place_and_counted(damaged, capfd):
    source = made(damaged, 129, on_bad="skip")
    found = blocks(source)
    for block in found:
        bad = np.flatnonzero(block.tree[1] == -100)
        assert bad.tolist() == [*range(5, block.rows, 32)]
        assert not block.tree[0][bad].any() and block.tree[0][6].any()
    assert source._blocks.skipped == sum(len(range(5, block.rows, 32)) for block in found)
    assert capfd.readouterr().err.count("is skipped") == 3
    other = blocks(made(damaged, 129, whole=True, on_bad="skip"))
    assert all(map(same, found, other))


def test_a_bad_image_that_is_not_skipped_names_the_first_of_its_block(damaged):
    with pytest.raises(SourceError) as parts:
        blocks(made(damaged, 129))
    with pytest.raises(SourceError) as whole:
        blocks(made(damaged, 129, whole=True))
    assert str(parts.value) == str(whole.value)


def test_blocks_that_nobody_wants_are_not_planned_for_ever(folder):
    planned = list[int]()

    def wanted(sample, ids):
        planned.append(sample)
        return np.full(len(ids), sample in (0, IMAGES - 1))

    with closing(made(folder, 1)) as source, closing(source.open(Cursor(0, 0), wanted)) as found:
        assert next(found).sample == 0
        assert len(planned) < 10


class Unfinished:
    """Workers that never finish what they begin."""

    capacity = 32  # of 16

    def __init__(self) -> None:
        self.tasks: list[Any] = []

    def prepare(self, setup: Any, files: Any) -> None:
        pass

    def submit(self, number: int, task: Any) -> None:
        self.tasks.append(task)

    def result(self, number: int) -> Any:
        raise TimeoutError

    def settle(self) -> None:
        pass

    close = settle


class SixSlots(OwnSlots):
    """As a quarter of a window of 512 MiB has for blocks of 128 images of 224 pixels."""

    def __init__(self, nbytes: int, file: tuple[int, int]) -> None:
        super().__init__(6, nbytes)
        self.ring_file = file


def test_sixteen_workers_have_work_where_the_window_holds_six_blocks(tmp_path):
    workers, image = Unfinished(), jpeg(noise(9, 9), "444")
    folder = tmp_path / "images" / "a"
    folder.mkdir(parents=True)
    for number in range(7 * 128):
        (folder / f"{number:03}.jpg").write_bytes(image)
    source = ImageSource(folder.parent, size=6, batch_size=128, workers=16, seed=5)
    file = (tmp_path / "ring").open("w+b")
    file.truncate(1 << 20)
    with closing(source), file:
        its = source._blocks
        its._workers = lambda: workers
        its.close()
        assert its.use(SixSlots(its.block_bytes, (file.fileno(), 1 << 20))) == 10  # type: ignore[arg-type]
        with pytest.raises(TimeoutError):
            next(source.open(Cursor(0, 0)))
    parts = {(task.plan.sample, task.places) for task in workers.tasks}
    assert len(parts) == len(workers.tasks) == 24, "of six blocks; 16 workers have one each, and eight a second"
