"""Files of tokens as a source."""

from __future__ import annotations

import itertools
import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.token_files import llm_c, megatron

import penstock
from penstock import TokenSource
from penstock.contracts import Cursor
from penstock.errors import BadSetting, ReadFailed, SourceError, Untravelled
from penstock.sources.tokens.rows import packed
from penstock.testing.source import SourceContract

LENGTH = 16


def document(size: int, first: int) -> np.ndarray:
    return (first + np.arange(size)).astype(np.uint16)


DOCUMENTS = [document(size, 1 + 100 * i) for i, size in enumerate([5, 40, 17, 16, 2, 1, 33, 18, 90, 3] * 8)]


def blocks(source: TokenSource, cycle: int = 0) -> list[Any]:
    return [block.tree for block in source.open(Cursor(cycle, 0))]


def predicted(batches: list[Any]) -> Counter[tuple[int, int]]:
    """Return how often each token was predicted from the one before it, in one document where these are told."""
    pairs: Counter[tuple[int, int]] = Counter()
    for batch in batches:
        tokens, documents = (
            (batch["tokens"], batch["documents"]) if isinstance(batch, dict) else (batch, batch * 0 + 1)
        )
        told = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] != 0)
        pairs.update(zip(tokens[:, :-1][told].tolist(), tokens[:, 1:][told].tolist(), strict=True))
    return pairs


def neighbours(tokens: np.ndarray) -> Counter[tuple[int, int]]:
    return Counter(zip(tokens[:-1].tolist(), tokens[1:].tolist(), strict=True))


class Tokens(SourceContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.write()

    def write(self) -> None:
        """Write the files."""
        raise NotImplementedError

    def rows_of(self, tree: Any) -> list[Any]:
        return [tuple(row) for row in (tree["tokens"] if isinstance(tree, dict) else tree).tolist()]


class TestWithoutHeader(Tokens):
    def write(self) -> None:
        document(4000, 0).tofile(self.folder / "train.bin")

    def make(self, seed: int = 0) -> TokenSource:
        return TokenSource(self.folder / "train.bin", length=LENGTH, batch_size=10, segments=6, seed=seed)

    def expected(self) -> Counter[Any]:
        return Counter(tuple(range(i, i + LENGTH + 1)) for i in range(0, 4000 - LENGTH, LENGTH))


class TestSeveralFilesInOrder(Tokens):
    def write(self) -> None:
        llm_c(self.folder / "a.bin", np.arange(1000, dtype=np.uint32))
        llm_c(self.folder / "b.bin", np.arange(5000, 7007, dtype=np.uint32))

    def make(self, seed: int = 0) -> TokenSource:
        return TokenSource(str(self.folder / "*.bin"), length=LENGTH, batch_size=7, shuffle=False, seed=seed)

    def expected(self) -> Counter[Any]:
        starts = [*range(0, 1000 - LENGTH, LENGTH), *range(5000, 7007 - LENGTH, LENGTH)]
        return Counter(tuple(range(i, i + LENGTH + 1)) for i in starts)


class TestDocumentsSplit(Tokens):
    documents: Any = "split"

    def write(self) -> None:
        self.path = megatron(self.folder / "text_document", DOCUMENTS)

    def make(self, seed: int = 0) -> TokenSource:
        return TokenSource(
            self.path, length=LENGTH, batch_size=10, documents=self.documents, segments=4, seed=seed
        )

    def expected(self) -> Counter[Any]:
        rows: Counter[Any] = Counter()
        for tokens in DOCUMENTS:
            for start in range(0, len(tokens) - 1, LENGTH):
                piece = tokens[start : start + LENGTH + 1].tolist()
                rows[tuple(piece + [0] * (LENGTH + 1 - len(piece)))] += 1
        return rows


class TestDocumentsPacked(TestDocumentsSplit):
    documents = "packed"

    def expected(self) -> Counter[Any]:
        return Counter(self.rows_of({"tokens": np.concatenate([tree["tokens"] for tree in blocks(self.make())])}))


class TestMixture(Tokens):
    def write(self) -> None:
        document(2000, 0).tofile(self.folder / "web.bin")
        document(330, 10_000).tofile(self.folder / "wiki.bin")

    def make(self, seed: int = 0) -> TokenSource:
        shares = {self.folder / "web.bin": 0.7, self.folder / "wiki.bin": 0.3}
        return TokenSource(shares, length=LENGTH, batch_size=10, segments=4, seed=seed)

    def expected(self) -> Counter[Any]:
        return Counter(row for tree in blocks(self.make()) for row in self.rows_of(tree))


@given(
    sizes=st.lists(st.integers(2, 200), min_size=1, max_size=4),
    length=st.integers(1, 40),
    rows=st.integers(1, 9),
    shuffle=st.booleans(),
)
def test_every_token_but_the_first_and_the_rest_is_predicted_once(tmp_path_factory, sizes, length, rows, shuffle):
    folder = tmp_path_factory.mktemp("tokens")
    ends = np.cumsum([0, *sizes])
    for i, size in enumerate(sizes):
        document(size, ends[i]).tofile(folder / f"{i}.bin")
    if max(sizes) <= length:
        with pytest.raises(BadSetting, match=f"{max(sizes)} tokens, and a row needs {length + 1}"):
            TokenSource(folder, length=length)
        return
    source = TokenSource(folder, length=length, batch_size=rows, shuffle=shuffle)
    expected: Counter[tuple[int, int]] = Counter()
    for i, size in enumerate(sizes):
        expected += neighbours(document((size - 1) // length * length + 1, ends[i]))
    assert predicted(blocks(source)) == predicted(blocks(source, 3)) == expected


@pytest.mark.parametrize("how", ["split", "packed"])
@pytest.mark.parametrize("sentences", [1, 3])
def test_every_token_of_a_document_is_predicted_once_from_its_own_document(tmp_path, how, sentences):
    path = megatron(tmp_path / "text", DOCUMENTS, sentences)
    source = TokenSource(path, length=LENGTH, batch_size=10, documents=how)
    assert predicted(blocks(source)) == sum(map(neighbours, DOCUMENTS), Counter())
    assert f"80 documents {how} into {source.samples} rows of 16" in source.description
    for batch in blocks(source):
        assert (batch["tokens"][batch["documents"] == 0] == 0).all()
        steps = np.diff(batch["documents"], axis=1)
        assert np.isin(steps[batch["documents"][:, 1:] > 0], (0, 1)).all()


def test_packing_leaves_less_empty_than_splitting(tmp_path):
    path = megatron(tmp_path / "text", DOCUMENTS)
    split, together = (TokenSource(path, length=LENGTH, documents=how) for how in ("split", "packed"))
    assert together.samples < 0.8 * split.samples
    assert together.samples <= 1.1 * sum(map(len, DOCUMENTS)) / LENGTH


@given(sizes=st.lists(st.integers(2, 30), min_size=1, max_size=60), capacity=st.integers(30, 50))
def test_best_fit_packs_as_one_piece_after_another_would(sizes, capacity):
    pieces, firsts = packed(np.array(sizes), capacity)
    assert sorted(pieces.tolist()) == list(range(len(sizes)))
    rows = [pieces[a:b] for a, b in itertools.pairwise(firsts)]
    filled = sorted(sum(sizes[piece] for piece in row) for row in rows)
    assert filled[-1] <= capacity
    alone: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [room for room in alone if room >= size]
        if fitting:
            alone.remove(min(fitting))
        alone.append(min(fitting, default=capacity) - size)
    assert filled == sorted(capacity - room for room in alone)


def test_a_mixture_has_its_shares_and_every_row_once_or_about_as_often(tmp_path):
    (tmp_path / "web").mkdir()
    document(3201, 0).tofile(tmp_path / "web" / "0.bin")
    document(801, 5000).tofile(tmp_path / "web" / "1.bin")
    document(1601, 9000).tofile(tmp_path / "wiki.bin")
    source = TokenSource({str(tmp_path / "web"): 5, str(tmp_path / "wiki.bin"): 3}, length=LENGTH, batch_size=32)
    assert source.samples == 250 + 150
    for cycle in (0, 1):
        starts = Counter(int(row[0]) for batch in blocks(source, cycle) for row in batch)
        web = {start: count for start, count in starts.items() if start < 9000}
        assert set(web.values()) == {1}
        assert len(web) == 250
        wiki = Counter(count for start, count in starts.items() if start >= 9000)
        assert wiki == {1: 50, 2: 50}
    again = [start for start, count in starts.items() if count == 2]
    assert np.mean(again) - 9000 != pytest.approx(25 * LENGTH, abs=2 * LENGTH), "not always those at the beginning"
    assert "62.5%" in source.description
    assert "1.50 times 100 rows of 16" in source.description


def test_trainers_of_a_feed_get_every_window_once_straight_from_slots_and_its_source_may_then_be_looped_over(
    serve, tmp_path
):
    document(1601, 0).tofile(tmp_path / "train.bin")
    source = TokenSource(tmp_path / "train.bin", length=LENGTH, batch_size=8)
    feeder = serve(source, window="64KiB")
    with (
        penstock.attach("feed", 7, framework="torch") as one,
        penstock.attach("feed", 5, select=np.arange(0, 100, 2)) as half,
    ):
        for _ in range(2):
            rows = [row for batch in one for row in batch.long().tolist()]
            assert sorted(row[0] for row in rows) == list(range(0, 1600, LENGTH))
            assert all(row == list(range(row[0], row[0] + LENGTH + 1)) for row in rows)
            taken = [int(row[0]) for batch in half for row in batch]
            assert sorted(taken) == list(range(0, 1600, 2 * LENGTH))
    assert "1,601 tokens" in feeder.statistics().source
    feeder.close()
    assert sum(map(len, source)) == 100


def test_a_file_that_is_written_to_or_removed_ends_the_epoch_before_a_wrong_batch(tmp_path):
    path = tmp_path / "train.bin"
    document(1601, 0).tofile(path)
    source = TokenSource(path, length=LENGTH, batch_size=10, shuffle=False)
    batches = source.open(Cursor(0, 0))
    next(batches)
    with path.open("r+b") as file:
        file.seek(2000)
        file.write(b"others")
    os.utime(path, ns=(0, 0))  # whatever the clock's resolution
    with pytest.raises(ReadFailed, match="has changed since"):
        list(batches)
    path.unlink()
    with pytest.raises(ReadFailed, match="No such file"):
        next(source.open(Cursor(1, 0)))


def test_a_npy_and_a_file_of_four_bytes_a_token_are_read_as_they_are(tmp_path):
    np.save(tmp_path / "shard.npy", document(100, 7))
    (npy,) = blocks(TokenSource(tmp_path / "shard.npy", length=33, shuffle=False))
    assert npy.dtype == np.uint16
    assert npy[:, 0].tolist() == [7, 40, 73]
    np.arange(70_000, 70_100, dtype=np.uint32).tofile(tmp_path / "wide.bin")
    (wide,) = blocks(TokenSource(tmp_path / "wide.bin", length=33, shuffle=False, dtype="uint32"))
    assert wide[:, 0].tolist() == [70_000, 70_033, 70_066]


@pytest.mark.parametrize(
    ("dtype", "least", "most"),
    [
        ("uint32", 0, 4),
        ("uint32", 0, 2),
        ("int64", 0, 4),
        ("uint32", 0, 50_257),
        ("uint32", 0, 128_256),
        ("int64", 0, 262_144),
        ("int32", -1, 100),
    ],
)
def test_wider_tokens_without_a_header_are_not_read_as_uint16_but_by_their_type(tmp_path, dtype, least, most):
    tokens = np.random.default_rng(0).integers(least, most, 1000).astype(dtype)
    tokens.tofile(tmp_path / "x.bin")
    seems = "uint32" if dtype == "int32" else dtype
    refused(
        rf"x\.bin has no header, and is no uint16.*Pass dtype='{seems}', or dtype='uint16' if", tmp_path / "x.bin"
    )
    (short,) = blocks(TokenSource(tmp_path / "x.bin", length=999, dtype="uint16", shuffle=False, batch_size=1))[:1]
    assert short.tolist() == [tokens.view(np.uint16)[:1000].tolist()]
    np.abs(tokens).tofile(tmp_path / "x.bin")
    (row,) = blocks(TokenSource(tmp_path / "x.bin", length=999, dtype=dtype))
    assert row.dtype == dtype and row.tolist() == [np.abs(tokens).tolist()]


@pytest.mark.parametrize("tokens", [np.arange(100) % 4, np.zeros(100), np.arange(7), np.tile([9, 0, 5, 4], 30)])
def test_few_different_tokens_of_uint16_are_no_wider_ones(tmp_path, tokens):
    tokens.astype(np.uint16).tofile(tmp_path / "x.bin")
    (rows,) = blocks(TokenSource(tmp_path / "x.bin", length=len(tokens) - 1))
    assert rows.tolist() == [tokens.tolist()]


@pytest.mark.parametrize("kind", ["bin", "npy", "megatron"])
def test_negative_ids_end_the_feed_with_the_file_that_has_them(tmp_path, kind):
    tokens = np.arange(100, dtype=np.int64)
    tokens[70] = -100
    if kind == "bin":
        tokens.tofile(tmp_path / "x.bin")
    elif kind == "npy":
        np.save(tmp_path / "x.npy", tokens)
    else:
        megatron(tmp_path / "x.bin", [tokens[:60].astype(np.int32), tokens[60:].astype(np.int32)])
    options = {"dtype": "int64"} if kind == "bin" else {"documents": "packed"} if kind == "megatron" else {}
    source = TokenSource(tmp_path / "x*", length=9, batch_size=2, shuffle=False, **options)
    given = 0
    with pytest.raises(SourceError, match=r"x\.(bin|npy) has the token -100: ids are 0 or more"):
        for _ in source:
            given += 1
    assert given < 6


def refused(match: str, files: Any, **options: Any) -> None:
    with pytest.raises(BadSetting, match=match):
        TokenSource(files, **{"length": 4, **options})


def test_what_is_no_file_of_tokens_is_refused_in_words(tmp_path):
    refused("no such file of tokens", tmp_path / "none.bin")
    refused("no such file of tokens", tmp_path)
    (tmp_path / "prepare.py").write_text("no tokens")
    refused("no such file of tokens", tmp_path / "prepare.py")
    refused("no such file of tokens", str(tmp_path / "*"))
    refused("no files were named", [])
    refused("s3://bucket/x.bin must lie on a disk of this machine", "s3://bucket/x.bin")
    (tmp_path / "empty.bin").touch()
    refused("is empty", tmp_path / "empty.bin")
    (tmp_path / "odd.bin").write_bytes(b"12345")
    refused("5 bytes, which are no whole number of uint16", tmp_path / "odd.bin")
    cut = llm_c(tmp_path / "cut.bin", document(100, 0))
    os.truncate(cut, 1100)
    refused("header is of 100 tokens .*cut short", cut)
    whole = llm_c(tmp_path / "whole.bin", document(100, 0))
    wide = llm_c(tmp_path / "wide.bin", np.arange(100, dtype=np.uint32))
    refused("says that its tokens are uint16", whole, dtype="uint32")
    refused("named twice", [whole, whole])
    refused("whole.bin is named twice", [tmp_path / "wide.bin", whole, os.path.relpath(whole)])
    refused("whole.bin: 0 tokens|has 0 tokens", llm_c(tmp_path / "none.bin", document(0, 0)))
    refused("named twice", [whole, str(tmp_path / "who*.bin")])
    (tmp_path / "alike.bin").symlink_to(whole)
    refused("named twice", [whole, tmp_path / "alike.bin"])
    refused("uint32 and .*uint16: files of one source", [whole, wide])
    refused("nothing shows where documents begin", whole, documents="packed")
    refused("100 tokens, and a row needs 101", whole, length=100)
    refused("length=0", whole, length=0)
    refused("documents='best'", whole, documents="best")
    refused("dtype='int8'", whole, dtype="int8")
    np.save(tmp_path / "floats.npy", np.zeros(9))
    refused("tokens are whole numbers", tmp_path / "floats.npy")
    np.save(tmp_path / "big.npy", np.zeros(9, ">u2"))
    refused("little-endian", tmp_path / "big.npy")


def test_an_index_that_belongs_to_no_such_file_is_refused(tmp_path):
    path = megatron(tmp_path / "text", DOCUMENTS)
    index, raw = path.with_suffix(".idx"), path.with_suffix(".idx").read_bytes()
    assert TokenSource(tmp_path / "text", length=4).samples == TokenSource(index, length=4).samples
    index.write_bytes(b"something else")
    refused("is no index of Megatron's", path)
    index.write_bytes(raw[:-9])
    refused("cut short", path)
    index.write_bytes(raw[:17] + b"\x07" + raw[18:])
    refused("type 7", path)
    index.write_bytes(raw[:-8] + (3).to_bytes(8, "little"))
    refused("where documents begin", path)
    index.write_bytes(raw)
    os.truncate(path, path.stat().st_size - 2)
    refused("index of another file, or one of the two was cut short", path)
    ones = megatron(tmp_path / "ones", [document(1, 0)] * 3)
    refused("no document of two tokens", ones, documents="split")


def test_weights_that_make_no_mixture_are_refused(tmp_path):
    for name, size in (("a", 1000), ("b", 10)):
        document(size, 0).tofile(tmp_path / f"{name}.bin")
    a, b = str(tmp_path / "a.bin"), str(tmp_path / "b.bin")
    refused(r"b.bin would come 124 times", {a: 1, b: 1})
    for weight in (0, -1, float("nan"), float("inf"), "a", None, np.array([1, 2])):
        refused("must be a number above 0", {a: 1, b: weight})
    refused("mixed by shuffling", {a: 9, b: 1}, shuffle=False)
    refused("no files were named", {})
    refused("no files were named", "")


def test_a_folder_of_nanogpts_is_not_taken_as_one(tmp_path):
    for part in ("train", "val"):
        document(100, 0).tofile(tmp_path / f"{part}.bin")
    refused("files to train with and files to validate with", tmp_path)
    assert TokenSource(tmp_path / "train.bin", length=9).samples == 11


def test_the_same_mixture_in_another_folder_has_the_same_order(tmp_path):
    def mixed(folder: str) -> TokenSource:
        (tmp_path / folder).mkdir()
        for name, size in (("a", 1000), ("b", 500)):
            document(size, 0).tofile(tmp_path / folder / f"{name}.bin")
        return TokenSource({tmp_path / folder / "a.bin": 1, tmp_path / folder / "b.bin": 2}, length=9)

    assert mixed("one").order == mixed("other").order


@pytest.mark.parametrize(
    ("magic", "version", "fields"),
    [
        (20240520, 2, 0),
        (20240520, 7, 500),
        (20240801, 1, 0),
        (20240522, 1, 0),
        (20240326, 3, 20),
        (278895051, 1, 200),
    ],
)
@pytest.mark.parametrize("dtype", [None, "uint16"])
def test_a_file_of_llm_cs_of_another_magic_or_version_is_refused(tmp_path, magic, version, fields, dtype):
    header = np.zeros(256, np.int32)
    header[3 : 3 + fields] = 5
    header[:3] = magic, version, 2000
    (tmp_path / "x.bin").write_bytes(header.tobytes() + bytes(4000))
    with pytest.raises(BadSetting, match=f"x.bin has a header like llm.c's, of magic {magic} and version"):
        penstock.TokenSource(tmp_path / "x.bin", length=16, dtype=dtype)


def test_tokens_that_begin_as_a_magic_number_does_are_tokens(tmp_path):
    """Unless nothing but zeros follows, as in a header."""
    tokens = np.arange(2000, dtype=np.uint16)
    for count in (200, 2000):
        tokens[:2] = 0, 310
        tokens[:count].tofile(tmp_path / f"{count}.bin")
        source = penstock.TokenSource(tmp_path / f"{count}.bin", length=16, shuffle=False)
        assert next(iter(source))[0, :4].tolist() == [0, 310, 2, 3]
        assert f"{count:,} tokens" in source.description


def test_a_state_of_files_in_another_order_is_refused(tmp_path):
    """As it was found: shards of a data set are equally long, and windows were taken for each other's."""
    for name in "ab":
        np.arange(100, dtype=np.uint16).tofile(tmp_path / f"{name}.bin")
    first, second = (
        penstock.TokenSource([tmp_path / f"{name}.bin" for name in names], length=16) for names in ("ab", "ba")
    )
    assert first.order != second.order
    assert first.order == penstock.TokenSource(tmp_path / "*.bin", length=16).order


def test_a_source_of_tokens_does_not_travel_and_says_why(tmp_path):
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "x.bin")
    source = penstock.TokenSource(tmp_path / "x.bin", length=16)
    with pytest.raises(Untravelled, match=r"x.bin cannot be pickled: .* the function that share"):
        pickle.dumps(source)
