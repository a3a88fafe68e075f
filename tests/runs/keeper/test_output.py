"""A run's output as it is kept: capped, its progress bars collapsed, readable at every moment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runs.keeper.output import Output, collapse, last_state, read_output


def kept(path: Path, *pieces: bytes, head: int = 1 << 20, tail: int = 7 << 20) -> bytes:
    output = Output(str(path), head, tail)
    for piece in pieces:
        output.add(piece)
    output.close()
    assert not output.failed
    return path.read_bytes()


def test_a_progress_bar_is_kept_in_its_last_state(tmp_path: Path):
    bar = b"".join(b"\r%3d%%|%s" % (i, b"#" * (i // 10)) for i in range(101))
    assert kept(tmp_path / "a", b"begin\r\n", bar, b"\nend\n") == b"begin\n100%|##########\nend\n"
    assert kept(tmp_path / "b", b"begin\n", bar) == b"begin\n100%|##########"


def test_what_is_shown_now_is_in_the_file_before_its_line_ends(tmp_path: Path):
    output = Output(str(tmp_path / "output"))
    for state in (b"loss 0.123456", b"\rloss 0.1", b"\rdone", b"\r"):
        output.add(state)
        assert (tmp_path / "output").read_bytes() == last_state(state) or b"done"
    output.add(b"\nnext")
    assert (tmp_path / "output").read_bytes() == b"done\nnext"
    output.close()


@given(st.lists(st.text(alphabet="ab\r\n", max_size=8), max_size=12))
def test_how_output_is_cut_into_pieces_changes_nothing(pieces: list[str]):
    whole, rest = b"", b""
    for piece in pieces:
        lines, rest = collapse(rest + piece.encode())
        whole += lines
    at_once = collapse("".join(pieces).encode())
    assert (whole, last_state(rest)) == (at_once[0], last_state(at_once[1]))


def test_of_a_long_output_head_and_tail_are_left_with_one_line_between(tmp_path: Path):
    lines = [b"line %d\n" % i for i in range(100_000)]
    whole = b"".join(lines)
    pieces = [whole[at : at + 5000] for at in range(0, len(whole), 5000)]
    found = kept(tmp_path / "output", *pieces, head=10_000, tail=100_000)
    head, note, tail = found.partition(b"\n[penstock left out ")
    number, _, tail = tail.partition(b" bytes here]\n")
    assert note
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert head.endswith(b"\n")
    assert tail.startswith(b"line ")
    assert 9_900 <= len(head) <= 10_000
    assert 50_000 - 20 <= len(tail) <= 100_000
    assert int(number.replace(b",", b"")) == len(whole) - len(head) - len(tail)


def test_a_binary_stream_without_an_end_of_line_is_capped(tmp_path: Path):
    piece = bytes(set(range(256)) - {10, 13}) * 256
    found = kept(tmp_path / "output", *[piece] * 400, head=1 << 20, tail=2 << 20)
    assert len(found) <= 3 << 20
    assert found.endswith(piece)


def test_a_full_disk_ends_the_file_and_not_the_run():
    output = Output("/dev/full")
    output.add(b"one\n")
    output.add(b"two\n")
    output.close()
    assert "No space left" in output.failed
    assert output.recent == b"one\ntwo\n"


@pytest.mark.whole
def test_who_follows_sees_every_line_although_the_file_is_cut(tmp_path: Path):
    output, said, seen, at = Output(str(tmp_path / "output")), b"", b"", 0
    with (tmp_path / "output").open("rb") as file:
        for chunk in range(300):
            text = b"".join(b"line %d of chunk %d, which is made longer\n" % (i, chunk) for i in range(2000))
            output.add(text)
            said += text
            if chunk % 7 == 0:
                text, at = read_output(file, at)
                seen += text
        seen += read_output(file, at)[0]
    output.close()
    assert len(said) > 20 << 20
    assert seen == said


def test_who_follows_too_slowly_is_told_what_was_left_out(tmp_path: Path):
    output = Output(str(tmp_path / "output"))
    with (tmp_path / "output").open("rb") as file:
        output.add(b"first\n" * 200_000)
        head, at = read_output(file, 0)
        for chunk in range(3000):
            output.add(b"chunk %d\n" % chunk + b"x" * 9000 + b"\n")
        rest, at = read_output(file, at)
        assert head == b"first\n" * 200_000
        assert re.match(rb"\n\[penstock left out [\d,]{9,} bytes here\]\nchunk \d+\n", rest)
        assert rest.endswith(b"x\n") and b"chunk 2999\n" in rest
        assert read_output(file, at)[0] == b""
    output.close()
