"""Shards and indexes that are damaged, incomplete, of another version, or hold what is not read."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import struct
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.sources.records.test_field_records import LITDATA, MDS, litdata_item, mds_sample
from tests.sources.records.test_shards import joined, packed
from tests.sources.records.writers import chunk, write_litdata, write_mds, zstd

from penstock import RecordSource
from penstock.contracts import FieldRecords
from penstock.errors import BadSetting, PackageMissing, ReadFailed
from penstock.sources.formats import field_records_of
from penstock.sources.records import offsets as reading
from penstock.sources.records.files import read
from penstock.sources.records.tar_samples import TarSamples

COUNT = 6


def mds(folder: Path, **options: Any) -> Path:
    return write_mds(folder, MDS, [mds_sample(i) for i in range(COUNT)], **options)


def litdata(folder: Path, **options: Any) -> Path:
    return write_litdata(folder, LITDATA, [litdata_item(i) for i in range(COUNT)], **options)


WRITERS = {"mds": mds, "litdata": litdata}


def opened(kind: str, folder: Path) -> FieldRecords:
    records = field_records_of(f"{kind}:{folder}")
    assert records is not None
    return records


def refused(kind: str, folder: Path, match: str) -> None:
    with pytest.raises((BadSetting, ReadFailed), match=match) as caught:
        opened(kind, folder)
    assert str(folder) in str(caught.value)


def change(folder: Path, how: Callable[[Any], object]) -> None:
    """Change an index."""
    index = json.loads((folder / "index.json").read_text())
    how(index)
    (folder / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("kind", WRITERS)
def test_a_shard_that_is_missing_cut_short_or_another_is_named(tmp_path, kind):
    folder = WRITERS[kind](tmp_path / "data")
    shard = max(path for path in folder.iterdir() if path.name != "index.json")
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    refused(kind, folder, f"{shard.name} has {len(whole) - 1:,} bytes, and its index.json says {len(whole):,}")
    for offsets, match in (
        (struct.pack("<I", 7) + whole[4:], "has 7 samples, and its index.json says 2"),
        (whole[:8] + struct.pack("<I", 5) + whole[12:], "damaged"),
        (whole[:4] + struct.pack("<I", 4) + whole[8:], "damaged"),
        (whole[:12] + struct.pack("<I", len(whole) + 1) + whole[16:], "damaged"),
    ):
        shard.write_bytes(offsets)
        refused(kind, folder, match)
    shard.unlink()
    refused(kind, folder, f"{shard.name} cannot be read: No such file or directory; .*index.json names it")
    (folder / "index.json").unlink()
    refused(kind, folder, "is no folder of .*No such file")


@pytest.mark.parametrize("kind", WRITERS)
def test_a_compressed_shard_that_is_damaged_is_named(tmp_path, kind):
    folder = WRITERS[kind](tmp_path / "data", compression="zstd")
    shard = max(path for path in folder.iterdir() if path.name != "index.json")
    whole = shard.read_bytes()
    shard.write_bytes(whole[:20] + bytes([whole[20] ^ 255]) + whole[21:])
    refused(kind, folder, f"{shard.name} (cannot be decompressed|is damaged)")
    shard.write_bytes(zstd(bytes(10_000)))
    if kind == "mds":
        change(folder, lambda index: index["shards"][-1]["zip_data"].update(bytes=shard.stat().st_size))
    refused(kind, folder, f"{shard.name} is damaged: it becomes 10,000 bytes or more, and its index says")
    shard.write_bytes(zstd(b""))
    if kind == "mds":
        change(folder, lambda index: index["shards"][-1]["zip_data"].update(bytes=shard.stat().st_size))
    refused(kind, folder, f"{shard.name} is damaged: it becomes 0 bytes")


@pytest.mark.parametrize(
    ("algorithm", "compression"), [("sha1", None), ("md5", "zstd"), ("blake2b", "zstd"), ("sha3_256", None)]
)
def test_shards_are_compared_with_the_hashes_of_their_index_once_a_version(
    tmp_path, monkeypatch, algorithm, compression
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = mds(tmp_path / "data", compression=compression)
    whole = hashed(folder, algorithm)
    right = [str(each) for each in all_of(opened("mds", folder))]
    shard, data = max(whole.items())
    for at in (len(data) - 1, len(data) // 2, 30):
        shard.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        refused("mds", folder, f"{shard.name} is damaged, .*its {algorithm} is [0-9a-f]+, and its index.json says")
    shard.write_bytes(data)
    assert [str(each) for each in all_of(opened("mds", folder))] == right
    monkeypatch.setattr("hashlib.file_digest", None)  # what was compared is not compared again
    assert [str(each) for each in all_of(opened("mds", folder))] == right


def test_a_hash_that_cannot_be_computed_is_named_and_one_that_can_be_is_compared(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = mds(tmp_path / "data")
    change(folder, lambda index: [each["raw_data"].update(hashes={"xxh64": "0"}) for each in index["shards"]])
    opened("mds", folder)
    assert "its hashes (xxh64) are none of hashlib's, and are not compared" in capfd.readouterr().err
    change(folder, lambda index: index["shards"][0]["raw_data"]["hashes"].update(sha1="0"))
    refused("mds", folder, "its sha1 is .*, and its index.json says 0")


def hashed(folder: Path, algorithm: str) -> dict[Path, bytes]:
    """Put into an index the hashes of its shards, as ``MDSWriter(hashes=...)`` does; return the shards."""
    whole = {path: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "index.json"}

    def add(index: Any) -> None:
        for data, shard in zip(whole.values(), index["shards"], strict=True):
            digest = hashlib.new(algorithm, data).hexdigest()
            shard["zip_data" if shard["zip_data"] else "raw_data"]["hashes"] = {algorithm: digest}

    change(folder, add)
    return whole


def test_shards_are_unpacked_once_and_again_where_that_was_broken_off(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = mds(tmp_path / "data", compression="zstd")
    opened("mds", folder)
    (first, second) = sorted((tmp_path / "penstock" / "shards").glob("*.shard"))
    assert "2 compressed shards" in capfd.readouterr().err
    right = all_of(opened("mds", folder))
    assert not capfd.readouterr().err
    first.write_bytes(first.read_bytes()[:-1])
    half = second.rename(second.with_name(f".{second.name}.123"))
    assert str(all_of(opened("mds", folder))) == str(right)
    assert "2 compressed shards" in capfd.readouterr().err
    assert not half.exists()


def unpacked_beside(folder: Path) -> list[Path]:
    """Unpack the shards of a folder as their libraries do."""
    found: list[Path] = []
    for path in sorted(folder.glob("*.zstd*")):
        found.append(path.with_name(path.name.replace(".zstd", "")))
        with pa.OSFile(str(path)) as packed, pa.CompressedInputStream(packed, "zstd") as stream:
            found[-1].write_bytes(stream.read())
    return found


@pytest.mark.parametrize("kind", WRITERS)
def test_shards_that_their_library_has_unpacked_in_place_are_read_as_they_lie(tmp_path, monkeypatch, capfd, kind):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = WRITERS[kind](tmp_path / "data", compression="zstd")
    packed = opened(kind, folder)
    right = str(all_of(packed))
    assert "2 compressed shards" in capfd.readouterr().err
    shutil.rmtree(tmp_path / "penstock")
    unpacked = unpacked_beside(folder)
    half, whole = unpacked[0], unpacked[0].read_bytes()
    half.write_bytes(whole[:-1])  # as one amid unpacking leaves it
    assert str(all_of(opened(kind, folder))) == right
    assert "1 compressed shards" in capfd.readouterr().err
    half.write_bytes(whole)
    for path in folder.glob("*.zstd*"):
        path.unlink()
    left = opened(kind, folder)
    assert str(all_of(left)) == right and list(left.names) == list(packed.names) and left.parts == packed.parts
    assert not capfd.readouterr().err
    half.write_bytes(whole[:-1])
    refused(kind, folder, r"zstd[.\w]* cannot be read: No such file or directory; .*index.json names it")


@pytest.mark.parametrize("kind", WRITERS)
def test_a_shard_that_was_written_anew_is_read_and_not_what_was_unpacked_before(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = WRITERS[kind](tmp_path / "data", compression="zstd")
    right = str(all_of(opened(kind, folder)))
    for path in unpacked_beside(folder):
        path.write_bytes(path.read_bytes()[:-1] + b"\x55")
        os.utime(path, (0, 0))
    assert str(all_of(opened(kind, folder))) == right


@pytest.mark.parametrize("kind", WRITERS)
def test_where_shards_would_be_unpacked_is_within_the_folder(tmp_path, kind):
    folder = WRITERS[kind](tmp_path / "data", compression="zstd")
    if kind == "mds":
        change(folder, lambda index: index["shards"][0]["raw_data"].update(basename="../x"))
    else:
        change(folder, lambda index: index["chunks"][0].update(filename="..zstd./x"))
    refused(kind, folder, "which is no file in it")


def test_a_cache_that_cannot_be_written_to_is_an_error_where_shards_are_compressed(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(opened("mds", mds(tmp_path / "plain")).names) == COUNT
    refused("mds", mds(tmp_path / "data", compression="zstd"), "cannot be unpacked in .*Not a directory")


def test_an_unknown_compression_is_refused_by_name(tmp_path, monkeypatch):
    folder = mds(tmp_path / "mds", compression="zstd")
    monkeypatch.setattr(reading, "require", missing)
    with pytest.raises(PackageMissing, match=r"a shard that is compressed \(zstd\) needs columns"):
        opened("mds", folder)
    change(folder, lambda index: index["shards"][0].update(compression="snappy"))
    refused("mds", folder, "compressed by 'snappy': known are zstd")
    folder = litdata(tmp_path / "litdata")
    change(folder, lambda index: index["config"].update(compression="lz4:3"))
    refused("litdata", folder, "compressed by 'lz4'")


def missing(what: str, extra: str, *modules: str) -> None:
    raise PackageMissing(f"{what} needs {extra}")


def of_config(**settings: Any) -> Callable[[Any], object]:
    return lambda index: index["config"].update(settings)


def of_shards(**settings: Any) -> Callable[[Any], object]:
    return lambda index: [shard.update(settings) for shard in index["shards"]]


def of_the_last(**settings: Any) -> Callable[[Any], object]:
    return lambda index: index["shards"][-1].update(settings)


NAMES = sorted(MDS)


@pytest.mark.parametrize(
    ("kind", "how", "match"),
    [
        ("mds", lambda index: index.update(version=3), "of version 3 of MDS; 2 is read"),
        ("mds", lambda index: index.pop("version"), "of version None of MDS"),
        ("mds", lambda index: index.update(shards=[]), "names no sample"),
        ("mds", lambda index: index.update(shards=7), "damaged, or of another version"),
        ("mds", of_shards(samples=0), "names no sample"),
        ("mds", of_shards(samples=-1), "damaged, or of another version"),
        ("mds", of_shards(samples=10**12), "do not lie one after another"),
        ("mds", of_shards(samples=5), "has 4 samples, and its index.json says 5"),
        ("mds", of_shards(format="json"), "of the format 'json'"),
        ("mds", of_the_last(version=1), "version 1; 'mds', version 2, is read"),
        ("mds", of_the_last(column_names=["x", *NAMES[1:]]), "has other columns than"),
        ("mds", of_shards(column_names=NAMES[1:]), "does not give each column one name"),
        ("mds", of_shards(column_names=[NAMES[0], *NAMES[:-1]]), "does not give each column one name"),
        ("mds", of_shards(column_names=[], column_encodings=[], column_sizes=[]), "names no column"),
        ("mds", of_shards(raw_data={"basename": "/etc/passwd", "bytes": 1}), "is no file in it"),
        ("mds", of_shards(raw_data={"basename": "../x.mds", "bytes": 1}), "is no file in it"),
        ("mds", of_shards(raw_data={"basename": "x\0", "bytes": 1}), "is no file in it"),
        ("mds", of_shards(raw_data={"basename": "x\ud800", "bytes": 1}), "damaged|is no file in it"),
        ("litdata", lambda index: index.pop("config"), "damaged, or of another version"),
        ("litdata", of_config(encryption={"algorithm": "fernet"}), "is encrypted"),
        ("litdata", of_config(item_loader="TokensLoader"), "written for TokensLoader"),
        ("litdata", of_config(compression="zstd", compression_level="pair"), "compressed by pair"),
        ("litdata", of_config(compression="zstd", compression_level="batch"), "compressed by batch, which is not"),
        (
            "litdata",
            of_config(compression="zstd", compression_level="sample"),
            "compressed by sample, which is not",
        ),
        ("litdata", of_config(data_format=["int"]), "does not give each leaf one name"),
        ("litdata", of_config(data_spec="[2, {}]"), "its version is 2"),
        ("litdata", of_config(data_spec=None), "cannot be read"),
        ("litdata", of_config(data_spec='[1, {"type": "x.Mine", "context": "", "children_spec": []}]'), "x.Mine"),
        ("litdata", of_config(data_spec="[" * 100_000), "cannot be read"),
    ],
)
def test_an_index_that_says_what_is_not_read_is_refused_in_words(tmp_path, kind, how, match):
    folder = WRITERS[kind](tmp_path / "data")
    change(folder, how)
    refused(kind, folder, match)


@pytest.mark.parametrize(
    ("kind", "encoding"),
    [
        *(("mds", encoding) for encoding in ("pkl", "jpeg_array", "ndarray:object", "ndarray:int8:x")),
        *(("litdata", encoding) for encoding in ("pickle", "graph:pickle", "no_header_numpy:14", "mine")),
    ],
)
def test_a_column_of_a_type_that_is_not_read_is_refused_by_name_unless_it_is_left_out(tmp_path, kind, encoding):
    folder = WRITERS[kind](tmp_path / "data")
    columns = MDS if kind == "mds" else LITDATA
    encodings = [encoding if name == "text" else columns[name] for name in (NAMES if kind == "mds" else LITDATA)]
    change(folder, of_shards(column_encodings=encodings) if kind == "mds" else of_config(data_format=encodings))
    assert opened(kind, folder).fields["text"] == f"{encoding}, not read"
    why = ", as nothing is unpickled" if encoding in ("pkl", "pickle", "graph:pickle") else ""
    match = (
        f"{folder}.* the first sample cannot be taken: the column text .*'{encoding}' is not read{why}: leave it"
    )
    for wanted in ("text", ["number", "text"]):
        with pytest.raises(BadSetting, match=match):
            RecordSource(f"{kind}:{folder}", columns=wanted)
    source = RecordSource(f"{kind}:{folder}", columns=["number", "real"], shuffle=False, workers=1)
    (batch,) = source
    assert batch["number"].tolist() == [-i for i in range(COUNT)]
    source.close()


@pytest.mark.parametrize("kind", WRITERS)
def test_a_prefix_without_a_folder_names_nothing(tmp_path, kind, monkeypatch):
    monkeypatch.chdir(WRITERS[kind](tmp_path / "data"))
    with pytest.raises(BadSetting, match=r"no folder of .* is named"):
        opened(kind, Path("/"))
    with pytest.raises(BadSetting, match=r"no folder of .* is named"):
        field_records_of(f"{kind}:")


def test_the_leaves_of_a_tree_are_named_by_their_paths(tmp_path):
    folder = litdata(tmp_path / "data")
    leaf = {"type": None, "context": None, "children_spec": []}
    pair = {"type": "builtins.tuple", "context": "null", "children_spec": [leaf, leaf]}
    tree = {"type": "collections.OrderedDict", "context": '["box", "n"]', "children_spec": [pair, leaf]}
    item = struct.pack("<3I3q", 8, 8, 8, 1, 2, 3)
    for spec, names in ((tree, ["box.0", "box.1", "n"]), (leaf, ["0"])):
        data = chunk([item if len(names) == 3 else struct.pack("<Iq", 8, 1)])
        (folder / "chunk-0-0.bin").write_bytes(data)
        described = {"chunk_bytes": len(data), "chunk_size": 1, "dim": None, "filename": "chunk-0-0.bin"}
        change(folder, lambda index, said=described: index.update(chunks=[said]))
        change(folder, of_config(data_format=["int"] * len(names), data_spec=json.dumps([1, spec])))
        records = opened("litdata", folder)
        assert [*records.parse(read(records.places(np.array([0]))[0]))] == names


def test_chunks_of_old_versions_whose_size_leaves_out_the_table_are_read(tmp_path):
    for compression in (None, "zstd"):
        folder = litdata(tmp_path / str(compression), compression=compression)
        change(folder, lambda index: [each.update(chunk_bytes=sizes_of(each)) for each in index["chunks"]])
        change(folder, lambda index: [index["config"].pop(name) for name in ("encryption", "item_loader")])
        assert len(opened("litdata", folder).names) == COUNT


def sizes_of(chunk: Any) -> int:
    return chunk["chunk_bytes"] - 4 * chunk["chunk_size"] - 8


@pytest.mark.parametrize("kind", WRITERS)
@settings(max_examples=examples(100))
@given(st.data())
def test_a_flipped_byte_of_a_table_or_an_index_gives_right_samples_or_an_error(kind, data):
    with tempfile.TemporaryDirectory() as at:
        folder = WRITERS[kind](Path(at) / "data")
        right = all_of(opened(kind, folder))
        path = data.draw(st.sampled_from(sorted(folder.iterdir())))
        content = bytearray(path.read_bytes())
        is_index = path.name == "index.json"
        where = data.draw(st.integers(0, (len(content) if is_index else 4 * (COUNT - 2) + 8) - 1))
        content[where] = data.draw(st.integers(0, 255))
        path.write_bytes(content)
        with suppress(BadSetting, ReadFailed):
            found = all_of(opened(kind, folder))
            assert is_index or all(
                sample is None or str(sample) == str(right[i]) for i, sample in enumerate(found)
            )
        shutil.rmtree(folder)


def all_of(records: FieldRecords) -> list[dict[str, Any] | None]:
    found: list[dict[str, Any] | None] = []
    for place in records.places(np.arange(len(records.names))):
        try:
            found.append(records.parse(read(place)))
        except ValueError:
            found.append(None)
    return found


def test_a_deep_or_huge_value_is_a_value_error(tmp_path):
    parse = opened("mds", write_mds(tmp_path, {"a": "json", "b": "str_int", "c": "ndarray"}, [SMALL])).parse
    for a, b, c in (
        (b"[" * 100_000, b"1", b"\x08\x04\x01\x00"),
        (b"1", b"9" * 10_000, b"\x08\x04\x01\x00"),
        (b"1", b"1", b"\x08\xfc" + b"\xff" * 63 + b"\x00"),
        (b"1", b"1", b"\x08\x07" + b"\xff" * 8),
        (b"1", b"1", b"\x07\x04\x01\x00"),
        (b"1", b"1", b""),
    ):
        with pytest.raises(ValueError, match="column"):
            parse(struct.pack("<3I", len(a), len(b), len(c)) + a + b + c)


SMALL = {"a": 1, "b": 1, "c": np.zeros(1, np.uint8)}


def tar_refused(path: Path, match: str) -> None:
    with pytest.raises(BadSetting, match=match) as caught:
        TarSamples(path)
    assert str(path) in str(caught.value)


def test_samples_of_a_tar_that_do_not_lie_in_one_piece_are_refused_by_name(tmp_path):
    path = tmp_path / "x.tar"
    packed(path, {"a.jpg": b"1", "b.jpg": b"2", "a.cls": b"3"})
    tar_refused(path, r"members of the sample a lie apart, the last is a\.cls")
    packed(path, {"a.jpg": b"1", "a.JPG": b"2"})
    tar_refused(path, r"the sample a has two members that end in \.jpg")
    packed(path, {"a.jpg": b"1", "README": b"2"}, links={"b.jpg": tarfile.LNKTYPE})
    tar_refused(path, "b.jpg is a link")
    packed(path, {"a.jpg": b"1"}, links={"a.png": tarfile.SYMTYPE})
    tar_refused(path, "a.png is a link")
    packed(path, {"README": b"1", ".hidden.jpg": b"2", "folder/": b""})
    tar_refused(path, "holds no sample")


def test_tars_that_were_joined_and_what_is_no_sample_between_them_are_read(tmp_path):
    one = {"a/x.jpg": b"1" * 600, "README": b"text", "a/x.cls": b"1", "a/.hidden.jpg": b"no"}
    records = TarSamples(joined(tmp_path / "x.tar", one, {"a/x.jpg": b"2", "a/x.cls": b"2", "a/x.txt": b"t"}))
    assert list(records.names) == ["a/x", "a/x"]
    assert records.fields == {"__key__": "str", "cls": "int64", "jpg": "jpeg"}
    first, second = (records.parse(read(place)) for place in records.places(np.arange(2)))
    assert (first["jpg"], first["cls"], second["jpg"], second["cls"]) == (b"1" * 600, 1, b"2", 2)


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_samples_with_long_names_have_their_endings(tmp_path, tar_format):
    key = "a-folder-with-a-long-name/" * 9 + "ünlaut"
    path = packed(tmp_path / "x.tar", {f"{key}.{end}": b"7" for end in ("cls", "txt")}, tar_format)
    records = TarSamples(path)
    assert records.parse(read(records.places(np.array([0]))[0])) == {"__key__": key, "cls": 7, "txt": "7"}


def test_a_member_that_is_not_what_its_ending_says_is_a_value_error(tmp_path):
    pickled = io.BytesIO()
    np.save(pickled, np.array([object()]), allow_pickle=True)
    good = io.BytesIO()
    np.save(good, np.arange(3))
    for ending, data, match in (
        ("cls", b"cat", "a.cls cannot be read"),
        ("cls", b"9" * 30, "a.cls cannot be read"),
        ("json", b"[" * 100_000, "a.json cannot be read"),
        ("txt", b"\xff", "a.txt cannot be read"),
        ("npy", pickled.getvalue(), "nothing is unpickled"),
        ("npy", good.getvalue()[:-1], "a.npy cannot be read"),
        ("npy", b"", "a.npy cannot be read"),
    ):
        records = TarSamples(packed(tmp_path / "x.tar", {f"a.{ending}": data}))
        with pytest.raises(ValueError, match=match):
            records.parse(read(records.places(np.array([0]))[0]))
