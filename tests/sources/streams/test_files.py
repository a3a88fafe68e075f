"""Pieces of a file are its whole lines, each once, with places from which the rest can be read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.contracts import Part
from penstock.sources.streams import files
from penstock.sources.streams.files import FolderFiles

LINES = st.lists(st.sampled_from([b"", b"1", b"22", b"a longer one", b"x" * 70]), max_size=12)


@pytest.fixture(scope="module", autouse=True)
def small_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "PIECE_BYTES", 16)
        yield


@given(LINES, st.sampled_from([b"", b"not yet whole"]), st.integers(1, 5), st.data())
def test_pieces(lines: list[bytes], rest: bytes, most: int, data: st.DataObject) -> None:
    records = [line for line in lines if line]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "log.jsonl").write_bytes(b"".join(line + b"\n" for line in lines) + rest)
        log, start, places = FolderFiles(folder), Part(0, 0, "log.jsonl"), list[Part]()
        for found, place in log.pieces(start, None):
            assert found == records[places[-1].offset if places else 0 : place.offset]
            places.append(place)
        whole = places[-1] if places else start
        assert (whole.offset, whole.byte) == (len(records), sum(map(len, lines)) + len(lines))

        place, seen = start, list[bytes]()  # as a reader goes on that has room for so many at a time
        while there := [*log.pieces(place, None, most)]:
            taken = [record for found, _ in there for record in found]
            assert len(taken) <= most and (len(taken) == most or there[-1][1] == whole)
            place, seen = there[-1][1], seen + taken
            places.append(place)
        assert seen == records and place == whole

        first, last = sorted(data.draw(st.lists(st.sampled_from([start, *places]), min_size=2, max_size=2)))
        taken = [record for found, _ in log.pieces(first, last) for record in found]
        assert taken == records[first.offset : last.offset]
        assert [*islice(log.pieces(whole, None), 1)] == []
