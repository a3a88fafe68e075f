"""Tokens from a cache are those of the files, wherever they lie and whatever happens to it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.forked import Forked, ForkServer
from tests.object_store import put
from tests.sources.token_files import llm_c, megatron

from penstock import Cache, TokenSource
from penstock.contracts import Cursor
from penstock.errors import BadSetting, ReadFailed
from penstock.io.cache import whole

PIECE = 16 << 10
LENGTH = 100
COUNT = 100_000  # 13 pieces
LONG_AGO = 1_000_000_000


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "PIECE_BYTES", PIECE)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "far" / "train.bin"
    path.parent.mkdir()
    np.random.default_rng(0).integers(0, 2**16, COUNT, np.uint16).tofile(path)
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


@pytest.fixture
def roomy(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", "10MB")


def made(file: Any, cache: Cache | None, **options: Any) -> TokenSource:
    return TokenSource(file, cache=cache, **{"length": LENGTH, "batch_size": 64, **options})


def rows(source: TokenSource, cycle: int = 0) -> np.ndarray:
    return np.concatenate([block.tree for block in source.open(Cursor(cycle, 0))])


def data_of(folder: Path) -> Path:
    (data,) = folder.glob("*/data")
    return data


def assert_each_piece_is_there_once(folder: Path) -> None:
    assert data_of(folder).stat().st_size == -(-2 * COUNT // 4096) * 4096


def spoil(folder: Path, offset: int, content: bytes) -> None:
    with data_of(folder).open("r+b") as data:
        data.seek(offset)
        data.write(content)


def test_tokens_are_fetched_once_and_found_again(file, tmp_path, capfd, roomy):
    plain = made(file, None)
    for expected in ("200 KB are fetched", "", ""):
        source = made(file, roomy)
        assert all(np.array_equal(rows(source, cycle), rows(plain, cycle)) for cycle in range(2))
        said = capfd.readouterr().err
        assert (expected in said) if expected else not said
    assert_each_piece_is_there_once(tmp_path / "cache")


def test_a_file_that_is_written_to_is_fetched_again_and_a_source_keeps_its_copy(file, roomy):
    source = made(file, roomy)
    before = rows(source)
    np.arange(COUNT, dtype=np.uint16).tofile(file)
    assert np.array_equal(rows(source), before)
    assert np.array_equal(rows(made(file, roomy)), rows(made(file, None)))
    assert not np.array_equal(rows(made(file, roomy)), before)


def test_a_damaged_piece_is_named_and_read_again(file, tmp_path, capfd, roomy):
    expected = rows(made(file, roomy))
    spoil(tmp_path / "cache", 8 * PIECE + 100, bytes(100))
    capfd.readouterr()
    source = made(file, roomy)
    assert np.array_equal(rows(source), expected)
    assert capfd.readouterr().err.count(f"at byte {8 * PIECE:,}: the cache is damaged") == 1
    assert np.array_equal(rows(source), expected)
    assert np.array_equal(rows(made(file, roomy)), expected)
    assert not capfd.readouterr().err  # it was kept anew


def test_a_damaged_piece_of_a_file_that_has_changed_is_an_error(file, tmp_path, roomy):
    made(file, roomy)
    spoil(tmp_path / "cache", 9 * PIECE, bytes(PIECE))
    source = made(file, roomy)
    file.write_bytes(bytes(2 * COUNT))
    with pytest.raises(ReadFailed, match="has changed while it was read"):
        rows(source)


def test_damage_after_a_source_was_made_is_seen_before_its_first_batch(file, tmp_path, roomy):
    expected = rows(made(file, None))
    source = made(file, roomy)
    spoil(tmp_path / "cache", 1000, bytes(100))
    assert np.array_equal(rows(source), expected)


def test_what_a_killed_process_left_takes_no_room(file, tmp_path):
    cache = Cache(tmp_path / "cache", "230KB")
    source = made(file, cache)
    expected = rows(source)
    del source
    (index,) = (tmp_path / "cache").glob("*/index")
    frame = index.stat().st_size // 13
    os.truncate(index, 5 * frame)
    os.truncate(data_of(tmp_path / "cache"), 6 * PIECE + 100)
    assert np.array_equal(rows(made(file, cache)), expected)
    assert_each_piece_is_there_once(tmp_path / "cache")


def test_documents_headers_and_indexes_are_kept_too(tmp_path, roomy):
    (tmp_path / "far").mkdir()
    documents = [np.arange(size, dtype=np.uint16) for size in (5, 40, 17, 300, 2, 90)] * 200
    with_index = megatron(tmp_path / "far" / "mega", documents)
    for how in ("split", "packed"):
        plain, kept = (made(with_index, each, documents=how) for each in (None, roomy))
        for mine, other in zip(kept.open(Cursor(0, 0)), plain.open(Cursor(0, 0)), strict=True):
            assert all(np.array_equal(mine.tree[leaf], other.tree[leaf]) for leaf in ("tokens", "documents"))
    tokens = np.arange(30_000, dtype=np.uint32)
    np.save(tmp_path / "far" / "a.npy", tokens)
    for path in (llm_c(tmp_path / "far" / "b.bin", tokens), tmp_path / "far" / "a.npy"):
        assert np.array_equal(rows(made(path, roomy)), rows(made(path, None)))
    assert len(list((tmp_path / "cache").glob("penstock-*"))) == 1  # of one folder


def test_what_does_not_fit_is_an_error_with_its_size(file, tmp_path):
    with pytest.raises(BadSetting, match=r"1 files of 200 KB are kept whole, and the cache in .* holds 100 KB"):
        made(file, Cache(tmp_path / "cache", "100KB"))
    cache = Cache(tmp_path / "cache", "300KB")
    made(file, cache)
    np.arange(COUNT, dtype=np.uint16).tofile(file)
    with pytest.raises(BadSetting, match=r"train.bin .* whole in the cache: it holds 300 KB, and 196 KiB"):
        made(file, cache)
    with pytest.raises(BadSetting, match="tokens are kept as they are"):
        made(file, Cache(tmp_path / "cache", "1MB", keep="pixels"))


def test_a_copy_that_a_crash_of_the_machine_cut_is_fetched_again(file, tmp_path, roomy):
    source = made(file, roomy)
    expected = rows(source)
    del source
    os.truncate(data_of(tmp_path / "cache"), 5 * PIECE)
    assert np.array_equal(rows(made(file, roomy)), expected)


def test_a_folder_that_may_only_be_read_gives_what_is_there(file, monkeypatch, roomy):
    expected = rows(made(file, roomy))
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as for another user; root may write anywhere
    assert np.array_equal(rows(made(file, roomy)), expected)
    np.arange(COUNT, dtype=np.uint16).tofile(file)
    with pytest.raises(BadSetting, match="cannot be kept whole in the cache: it may only be read"):
        made(file, roomy)


FILL = """
import sys
import penstock
from penstock.io.cache import whole

whole.PIECE_BYTES = 16 << 10
print("begins", flush=True)
penstock.TokenSource(sys.argv[1], length=100, cache=penstock.Cache(sys.argv[2], "10MB"))
print("done", flush=True)
"""


@pytest.fixture
def filling(servers: dict[str, ForkServer], tmp_path: Path, file: Path) -> Callable[..., Forked]:
    """Start a script of those below."""

    def start(script: str, *words: str) -> Forked:
        path = tmp_path / f"{len([*tmp_path.iterdir()])}.py"
        path.write_text(script)
        arguments = [str(file), str(tmp_path / "cache"), *words]
        return Forked(servers["numpy"], str(path), arguments, path.with_suffix(".out"))

    return start


DIES = """
import os
import signal
from penstock.io.cache.slab import Slab
append = Slab.append
left = [int(sys.argv[3])]

def dying(self, items):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return append(self, items)

Slab.append = dying
"""


@pytest.mark.parametrize("kept", [0, 1, 5, 12])
def test_a_process_killed_while_it_fetches_leaves_what_the_next_goes_on_with(file, filling, tmp_path, kept, roomy):
    script = FILL.replace('print("begins"', DIES + 'print("begins"')
    for _ in range(2 if kept < 7 else 1):  # the second goes on where the first one died
        died = filling(script, str(kept))
        assert died.wait() == -signal.SIGKILL, died.output
        assert data_of(tmp_path / "cache").stat().st_size >= kept * PIECE
    assert np.array_equal(rows(made(file, roomy)), rows(made(file, None)))
    assert_each_piece_is_there_once(tmp_path / "cache")


def test_of_several_processes_one_fetches_a_file_for_all(file, filling, tmp_path, roomy):
    some = [filling(FILL) for _ in range(3)]
    assert [process.wait() for process in some] == [0] * 3
    said = "".join(process.output for process in some)
    assert said.count("begins\n") == said.count("done\n") == 3
    assert said.count("are fetched into the cache") == 1
    assert np.array_equal(rows(made(file, roomy)), rows(made(file, None)))
    assert_each_piece_is_there_once(tmp_path / "cache")


@pytest.fixture
def bucket(s3: str, file: Path) -> str:
    put("tokens/train.bin", file.read_bytes())
    put("tokens/val.npy", b"")
    return "s3://bucket/tokens"


def test_tokens_in_a_store_come_from_a_cache(bucket, file, roomy):
    for named in (f"{bucket}/train.bin", f"{bucket}/tr*.bin"):
        assert np.array_equal(rows(made(named, roomy)), rows(made(file, None)))
    with pytest.raises(BadSetting, match=r"s3://bucket/tokens/train.bin must lie on a disk of this machine. Pass"):
        made(f"{bucket}/train.bin", None)
    with pytest.raises(BadSetting, match=r"s3://bucket/tokens/none.bin cannot be read"):
        made(f"{bucket}/none.bin", roomy)
    with pytest.raises(BadSetting, match=r"s3://bucket/tokens/val.npy is empty"):
        made(f"{bucket}/val.npy", roomy)


def test_an_object_that_is_replaced_is_fetched_anew(bucket, file, roomy):
    old = made(f"{bucket}/train.bin", roomy)
    expected = rows(old)
    np.arange(COUNT, dtype=np.uint16).tofile(file)
    put("tokens/train.bin", file.read_bytes())
    assert np.array_equal(rows(made(f"{bucket}/train.bin", roomy)), rows(made(file, None)))
    assert np.array_equal(rows(old), expected)


def test_objects_that_hold_no_tokens_are_not_taken_for_some(s3, file, roomy):
    put("some/README.md", b"read me, twice")
    put("some/mega.bin", file.read_bytes())
    for named in ("s3://bucket/some/*", "s3://bucket/some", "s3://bucket/some/mega.idx"):
        assert np.array_equal(rows(made(named, roomy)), rows(made(file, None)))
    with pytest.raises(BadSetting, match=r"s3://bucket/some/R\*: no such file of tokens"):
        made("s3://bucket/some/R*", roomy)


def test_a_prefix_with_files_to_train_and_to_validate_with_is_refused(s3, file, roomy):
    for name in ("train", "val"):
        put(f"both/{name}.bin", file.read_bytes())
    with pytest.raises(BadSetting, match="holds files to train with and files to validate with"):
        made("s3://bucket/both", roomy)


def test_damage_in_a_cached_array_with_bytes_behind_it_is_found(tmp_path, roomy):
    file = tmp_path / "tokens.npy"
    np.save(file, np.arange(60_000, dtype=np.uint16))
    file.write_bytes(file.read_bytes() + bytes(80 << 10))
    expected = rows(made(file, None))
    made(file, roomy)
    spoil(tmp_path / "cache", 70_000, b"damage")
    assert np.array_equal(rows(made(file, roomy)), expected)


def test_what_another_process_has_replaced_is_not_mapped(file, monkeypatch, roomy):
    monkeypatch.setattr(whole.WholeFile, "_rows", lambda self: [-1] * len(self._offsets))
    monkeypatch.setattr(whole.WholeFile, "_missing", lambda self: [])
    with pytest.raises(BadSetting, match="was replaced while it was fetched"):
        made(file, roomy)
