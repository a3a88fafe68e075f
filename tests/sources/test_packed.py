"""Packed data sets as a source: the same bytes through every reader, into the ring, or one clear error."""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.gpu import FakeGpu
from tests.support.contracts import LOADING, only

import penstock
from penstock.contracts import ByteArray, Completed, Cursor, Extents, Opened, Reader
from penstock.errors import BadSetting, BlockTooLarge, PackDamaged, ReaderUnavailable, SourceError
from penstock.io.measurements import Measurement, save
from penstock.io.open import FILE_MECHANISMS, open_reader
from penstock.io.queue import ThreadQueue
from penstock.io.reader import QueueReader
from penstock.io.uring import UringQueue
from penstock.memory.host_ring import WritableHostRing
from penstock.memory.slots import Filled, Slot, Slots
from penstock.sources.packed.format import HEADER_BYTES
from penstock.sources.packed.packed_source import PackedSource
from penstock.sources.packed.packing import pack
from penstock.testing.faulty_queue import FaultyQueue
from penstock.testing.source import SourceContract

ROWS = 203
ALIGNED, ODD = 8192, 5001  # bytes of a row that every disk reads as it is, and of one that none does


@cache
def images(rows: int = ROWS, row_bytes: int = ALIGNED) -> dict[str, Any]:
    content = np.random.default_rng(7).integers(0, 256, (rows, row_bytes), np.uint8)
    return {"id": np.arange(rows), "image": content}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packed")
    pack(images(), path / "aligned")
    pack(images(row_bytes=ODD), path / "odd")
    pack({"id": torch.arange(ROWS)}, path / "kept")
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A data set of the test's own, to be spoilt; 40 images of two pages."""
    pack(images(40), tmp_path / "small")
    return tmp_path / "small"


def trees(source: PackedSource, cycle: int = 0) -> list[Any]:
    with closing(source):
        return [block.tree for block in source.open(Cursor(cycle, 0))]


def faulty(mech: str, **faults: float) -> Callable[[ByteArray], Reader]:
    def reader(memory: ByteArray) -> Reader:
        queue = UringQueue(16, memory) if mech == "uring" else ThreadQueue(16, 4, direct=mech == "direct")
        return QueueReader(FaultyQueue(queue, seed=5, **faults), memory)

    return reader


READERS: dict[str, tuple[str, dict[str, Any]]] = {
    "direct": ("aligned", {"reader": "direct"}),
    "uring": ("aligned", {"reader": "uring"}),
    "uring, odd rows": ("odd", {"reader": "uring"}),
    "direct, odd rows": ("odd", {"reader": "direct"}),
    # Short reads, EINTR, and results in any order change nothing.
    "disorder": ("aligned", {"reader": faulty("uring", shorts=0.3, repeats=0.2)}),
    "kept in memory": ("kept", {}),
}
ORDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "posix": ("aligned", {"reader": "posix"}),
    "in order": ("aligned", {"batch_size": 7, "shuffle": False, "segments": 16}),
}


class TestPacked(SourceContract):
    @pytest.fixture(autouse=True, params=ORDERS)
    def _reader(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self.rows, self.options = ORDERS[request.param]
        self.folder = folder / self.rows

    def make(self, seed: int = 0) -> PackedSource:
        return PackedSource(
            self.folder, **{"batch_size": 10, "segments": 6, "seed": seed, "depth": 16, **self.options}
        )

    def expected(self) -> Counter[Any]:
        return Counter(range(ROWS))

    def rows_of(self, tree: Any) -> list[Any]:
        if "image" in tree:
            same = images(row_bytes=ALIGNED if self.rows == "aligned" else ODD)["image"][tree["id"]]
            np.testing.assert_array_equal(tree["image"], same)
        return tree["id"].tolist()


@only(*LOADING, "what_is_wanted", "broken_off")
class TestReaders(TestPacked):
    @pytest.fixture(autouse=True, params=READERS)
    def _reader(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self.rows, self.options = READERS[request.param]
        self.folder = folder / self.rows


class Sample(NamedTuple):
    image: Any
    more: dict[str, Any]


DTYPES = [torch.uint8, torch.bfloat16, torch.float32, torch.bool, torch.complex64]
LEAVES = st.one_of(
    st.tuples(st.just(np.asarray), st.sampled_from(["u1", "<i8", ">f4", "<U3", "S5", "<M8[s]", "?", "<c16"])),
    st.tuples(st.just(torch.from_numpy), st.sampled_from(DTYPES)),
)


@settings(max_examples=examples(12))
@given(data=st.data(), rows=st.integers(1, 30), batch_size=st.integers(1, 12), keep=st.booleans())
def test_every_reader_gives_the_bytes_that_were_packed(tmp_path_factory, data, rows, batch_size, keep):
    def leaf() -> Any:
        make, dtype = data.draw(LEAVES)
        shape = (rows, *data.draw(st.lists(st.integers(0, 9) | st.just(64), max_size=3)))
        values = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 99, shape)
        return make(values).to(dtype) if make is torch.from_numpy else values.astype(dtype)

    tree = Sample(leaf(), {"all": [leaf(), leaf()], "size": 3})
    path = tmp_path_factory.mktemp("any") / "set"
    pack(tree, path)
    for reader in FILE_MECHANISMS:
        got = trees(
            PackedSource(
                path, reader=reader, batch_size=batch_size, shuffle=False, keep_bytes=1 << 20 if keep else 0
            )
        )
        assert all(type(each) is Sample and each.more["size"] == 3 for each in got)
        for here, there in (
            (tree.image, [each.image for each in got]),
            (tree.more["all"][0], [each.more["all"][0] for each in got]),
            (tree.more["all"][1], [each.more["all"][1] for each in got]),
        ):
            assert all(each.dtype == here.dtype and type(each) is type(here) for each in there)
            joined = torch.cat(there) if isinstance(here, torch.Tensor) else np.concatenate(there)
            assert joined.shape == here.shape
            assert bool((joined == here).all())


@pytest.mark.parametrize(
    ("reader", "borrow"), [("posix", True), ("direct", False), ("uring", True), ("gpu", False)]
)
def test_a_feed_reads_into_the_ring_and_gives_every_sample_once(serve, folder, reader, borrow):
    feeder = serve(PackedSource(folder / "aligned", reader=reader, batch_size=8), window="2MiB", prefetch=2)
    same = images()["image"]
    with penstock.attach("feed", 13, borrow=borrow) as trainer:
        for _ in range(3):
            seen: list[int] = []
            for batch in trainer:
                np.testing.assert_array_equal(batch["image"], same[batch["id"]])
                seen += batch["id"].tolist()
            assert sorted(seen) == list(range(ROWS))
        statistics = feeder.statistics()
    assert statistics.blocks_in_place == statistics.blocks
    assert f"{reader}: " in statistics.source
    assert "O_DIRECT" in statistics.source or reader == "posix"


def test_no_reader_needs_a_buffer_where_rows_lie_as_the_disk_wants_them(folder):
    """Each extent lands in the slot itself, at a place that O_DIRECT takes."""
    asked: list[Extents] = []
    with closing(WritableHostRing.create(1 << 20)) as ring, closing(Slots(ring)) as slots:
        reader = lambda memory: Noting(open_reader("uring", memory, depth=16), asked)  # noqa: E731
        with closing(PackedSource(folder / "aligned", reader=reader, batch_size=8)) as source:
            source.fill(slots)
            taken = [Slot(64, source.slot_bytes), Slot(64 * 5000, source.slot_bytes)]
            for slot in taken:
                slots.offer(slot)
            blocks = source.open(Cursor(0, 0))
            first = next(blocks).tree
            assert isinstance(first, Filled)
            assert first.slot == taken[0]
            assert slots.ring_memory.ctypes.data % HEADER_BYTES == 0
            for extents in asked:
                assert not ((extents.to | extents.offsets | extents.nbytes) % HEADER_BYTES).any()
                assert all(64 <= to < ring.capacity_bytes for to in extents.to)
            blocks.close()  # type: ignore[attr-defined]
            assert slots.take() == taken[1], "a slot that was filled in vain is on offer again"


class Noting:
    """A reader that notes what it is asked."""

    def __init__(self, reader: Reader, asked: list[Extents]) -> None:
        self.mech, self.depth, self.path_taken = reader.mech, reader.depth, reader.path_taken
        self._reader, self._asked = reader, asked

    def open(self, path: str) -> Opened:
        return self._reader.open(path)

    def submit(self, extents: Extents) -> int:
        self._asked.append(extents)
        return self._reader.submit(extents)

    def completed(self, at_least: int = 1) -> Completed:
        return self._reader.completed(at_least)

    def close(self) -> None:
        self._reader.close()


def test_rows_that_follow_one_another_are_read_at_once(folder):
    asked: list[Extents] = []
    reader = lambda memory: Noting(open_reader("posix", memory), asked)  # noqa: E731
    trees(PackedSource(folder / "aligned", reader=reader, batch_size=100, shuffle=False))
    assert [extents.nbytes.tolist() for extents in asked] == [[100 * ALIGNED], [100 * ALIGNED], [3 * ALIGNED]]
    asked.clear()
    trees(PackedSource(folder / "aligned", reader=reader, batch_size=ROWS, shuffle=False))
    assert [extents.nbytes.tolist() for extents in asked] == [[1 << 20, ROWS * ALIGNED - (1 << 20)]], (
        "1 MiB at most"
    )


def test_a_pass_that_is_broken_off_writes_nothing_any_more(folder):
    with (
        closing(WritableHostRing.create(1 << 20)) as ring,
        closing(Slots(ring)) as slots,
        closing(PackedSource(folder / "aligned", reader=faulty("direct"), batch_size=8)) as source,
    ):
        source.fill(slots)
        offered = {Slot(i << 17, 1 << 17) for i in range(8)}
        for slot in offered:
            slots.offer(slot)
        blocks = source.open(Cursor(0, 0))
        given = next(blocks).tree.slot
        blocks.close()  # type: ignore[attr-defined]
        slots.ring_memory[:] = 0xA5
        assert {slots.take() for _ in range(7)} == offered - {given}
        list(source.open(Cursor(0, 0)))  # nothing is on offer: by way of memory of its own
        assert (slots.ring_memory == 0xA5).all()


@pytest.mark.parametrize("mech", FILE_MECHANISMS)
def test_a_disk_error_ends_the_feed_with_the_file_and_the_offset(serve, small, mech):
    serve(PackedSource(small, reader=faulty(mech, errors=0.2), batch_size=4))
    with penstock.attach("feed") as trainer, pytest.raises(SourceError) as caught:
        for _ in range(100):
            list(trainer)
    assert os.strerror(errno.EIO) in str(caught.value)
    assert f"of {small / '1-image.npy'}" in str(caught.value)
    assert caught.value.traceback_text == "", "no frame is of the user's code"


def test_a_file_that_was_cut_short_is_refused_with_both_sizes(small):
    path = small / "1-image.npy"
    whole = path.stat().st_size
    os.truncate(path, whole - 1)
    with pytest.raises(PackDamaged, match=rf"{path} has {whole - 1:,} bytes and should have {whole:,}"):
        PackedSource(small)
    path.unlink()
    with pytest.raises(PackDamaged, match=rf"image.npy is missing. Restore it from a copy, or delete {small} and"):
        PackedSource(small)


@pytest.mark.parametrize("which", ["0-id.npy", "1-image.npy"])
def test_a_file_that_is_replaced_while_it_is_read_ends_the_feed(serve, small, which):
    serve(PackedSource(small, batch_size=4))
    with penstock.attach("feed") as trainer:
        list(trainer)
        copy = small / "copy"
        copy.write_bytes((small / which).read_bytes())
        copy.rename(small / which)
        with pytest.raises(PackDamaged, match=rf"{which} was replaced"):
            for _ in range(100):
                list(trainer)


def test_a_window_that_can_never_hold_a_block_is_refused_before_the_feed_runs(serve, small):
    block_bytes = PackedSource(small, batch_size=20).block_bytes
    assert block_bytes == 20 * 8192 + 192  # and 20 ids, on whole lines
    too_small = 20 * 8192
    with pytest.raises(BlockTooLarge, match=rf"{block_bytes:,} bytes \(20 samples\).*{too_small:,} bytes"):
        penstock.Feeder(PackedSource(small, batch_size=20), "feed", window=too_small)
    with pytest.raises(BlockTooLarge, match="which holds four such blocks"):
        penstock.share(lambda: PackedSource(small, batch_size=20), "shared", window=too_small)
    assert not penstock.feeds()
    serve(PackedSource(small, batch_size=20), window=block_bytes)
    with penstock.attach("feed", 20) as trainer:
        assert sorted(int(i) for batch in trainer for i in batch["id"]) == list(range(40))


def test_what_is_no_packed_data_set_is_refused(small, tmp_path):
    with pytest.raises(BadSetting, match=r"packed data set in .*: there is no such folder.*makes one"):
        PackedSource(small / "not" / "there")
    with pytest.raises(BadSetting, match=rf"nowhere: there is no such folder. There is one in {small}"):
        PackedSource(tmp_path / "nowhere")
    with pytest.raises(BadSetting, match=rf"{tmp_path}: it has no penstock.json. There is one in"):
        PackedSource(tmp_path)
    with pytest.raises(BadSetting, match=r"0-id.npy: it is no folder. There is one in"):
        PackedSource(small / "0-id.npy")


def test_settings_out_of_range_are_refused(small):
    with pytest.raises(BadSetting, match="one of auto, posix, direct, uring"):
        PackedSource(small, reader="telepathy")
    wrong: dict[str, list[Any]] = {
        "batch_size": [0, 2.5],
        "depth": [0, "8", 5000],
        "segments": [0],
        "seed": ["one"],
    }
    wrong |= {"keep_bytes": [-1], "reader": [None], "folder": [5, "a\0b", ""]}
    for name, value in [(name, value) for name, values in wrong.items() for value in values]:
        told = re.escape(f"{name}={value!r}") if value != "" else "packed: without a folder"
        with pytest.raises(BadSetting, match=told):
            PackedSource(**{"folder": small, name: value})  # type: ignore[arg-type]


def test_a_number_may_be_numpys(small):
    blocks = trees(PackedSource(small, batch_size=np.int64(4), depth=np.uint8(3), seed=np.int32(-1)))  # type: ignore[arg-type]
    assert sorted(int(i) for tree in blocks for i in tree["id"]) == list(range(40))


def test_auto_takes_the_next_reader_where_one_cannot_be_had(small, monkeypatch):
    def without_uring(mech: str, memory: ByteArray, **options: int) -> Reader:
        if mech == "uring":
            raise ReaderUnavailable("io_uring: it is forbidden here")
        return open_reader(mech, memory, **options)

    monkeypatch.setattr("penstock.sources.packed.packed_source.open_reader", without_uring)
    with closing(PackedSource(small)) as source:
        assert "direct (auto: io_uring: it is forbidden here; not measured here" in source.description
        list(source.open(Cursor(0, 0)))
        assert "preadv, O_DIRECT, 32 threads" in source.description
    with pytest.raises(ReaderUnavailable, match="forbidden"):
        PackedSource(small, reader="uring")


def test_auto_takes_what_was_measured_best_here(small, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    common: dict[str, Any] = {"bs_bytes": 4096, "pattern": "random"}
    fast = Measurement(mech="direct", qd=16, threads=3, iops=9e4, mb_s=368.6, cpu_us_per_op=2, **common)
    slow = Measurement(mech="uring", qd=64, threads=1, iops=1e4, mb_s=41.0, cpu_us_per_op=9, **common)
    save([fast, slow], small)
    with closing(PackedSource(small)) as source:
        list(source.open(Cursor(0, 0)))
        assert "direct (auto: measured here)" in source.description
        assert "3 threads" in source.description


def test_one_pass_at_a_time(small):
    with closing(PackedSource(small, batch_size=4)) as source:
        first = source.open(Cursor(0, 0))
        next(first)
        with pytest.raises(BadSetting, match="still open"):
            next(source.open(Cursor(1, 0)))
        assert len(list(first)) == 9
        assert len(list(source.open(Cursor(1, 0)))) == 10


def test_a_source_may_be_closed_while_a_pass_is_open(small):
    source = PackedSource(small, batch_size=4)
    blocks = source.open(Cursor(0, 0))
    next(blocks)
    source.close()
    blocks.close()  # type: ignore[attr-defined]


def test_a_ring_on_a_gpu_is_fed_from_the_host_memory_that_rows_are_read_into(serve, folder):
    feeder = serve(PackedSource(folder / "aligned", batch_size=8), memory=FakeGpu(), window="2MiB")
    same = images()["image"]
    with penstock.attach("feed", 13, device=FakeGpu()) as trainer:
        seen: list[int] = []
        for batch in trainer:
            numbers = batch["id"].tolist()
            np.testing.assert_array_equal(batch["image"].numpy(), same[numbers])
            seen += numbers
        assert sorted(seen) == list(range(ROWS))
        assert "io_uring, O_DIRECT" in feeder.statistics().source


def test_a_feeder_takes_the_folder_by_name(serve, small):
    serve(f"packed:{small}")
    with penstock.attach("feed", 7) as trainer:
        assert sorted(i for batch in trainer for i in batch["id"].tolist()) == list(range(40))
