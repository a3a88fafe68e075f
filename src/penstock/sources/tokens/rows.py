"""How the tokens of some files make rows of one length: spans of a stream, or pieces of documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from penstock.contracts import Ids, Numbers
from penstock.errors import BadSetting
from penstock.sources.tokens.token_files import TokenFile, Tokens


def packed(sizes: Numbers, capacity: int) -> tuple[Ids, Ids]:
    """Put pieces into rows, longest first, each into the fullest row that has room for it.

    Best-fit decreasing, as in Ding et al., "Fewer Truncations Improve Language Modeling" (ICML 2024); pieces of
    one size are placed together. A row has room for ``capacity``, which no piece exceeds.

    Returns:
        The pieces, row after row; and the index of each row's first piece, and the number of pieces.
    """
    row_of = np.empty(len(sizes), np.int64)
    rows: list[list[int]] = [[] for _ in range(capacity + 1)]  # by the room that is left in them
    some = 0  # bit r is set where rows have room r
    made = 0
    by_size = np.argsort(-sizes, kind="stable")
    bounds = np.flatnonzero(np.diff(sizes[by_size], prepend=-1)).tolist()
    for first, stop in zip(bounds, [*bounds[1:], len(sizes)], strict=True):
        pieces, size = by_size[first:stop], int(sizes[by_size[first]])
        while len(pieces):
            if fitting := some >> size:
                room = size + (fitting & -fitting).bit_length() - 1  # the least that there is
            else:
                room, needed = capacity, -(-len(pieces) // (capacity // size))
                rows[room] += range(made, made + needed)
                made += needed
            each = room // size
            many = min(len(rows[room]), -(-len(pieces) // each))
            taken = rows[room][-many:]
            del rows[room][-many:]
            placed = pieces[: many * each]
            row_of[placed] = np.repeat(taken, each)[: len(placed)]
            pieces = pieces[len(placed) :]
            of_last = len(placed) - (many - 1) * each
            rows[room - each * size] += taken[:-1]
            rows[room - of_last * size].append(taken[-1])
            for changed in (room, room - each * size, room - of_last * size):
                some = some | 1 << changed if rows[changed] else some & ~(1 << changed)
    return np.argsort(row_of, kind="stable"), np.concatenate(([0], np.cumsum(np.bincount(row_of, minlength=made))))


_GATHERED_BYTES = 256 << 10
"""Spans are gathered in the cache of a core, this many bytes at once, and written to their places together."""


def list_of(numbers: Numbers) -> list[int]:
    """Return numbers as Python's."""
    return numbers.tolist()


def distinct(numbers: Numbers) -> list[int]:
    """Return each number once, rising."""
    return sorted(set(list_of(numbers)))


class Spans:
    """Rows that are spans of a stream of tokens; each begins with the last token of the one before.

    So every token but a file's first is predicted once. What fills no span at the end of a file is left out.
    """

    def __init__(self, files: Sequence[TokenFile], length: int) -> None:
        self._files = files  # files, each a stream
        self._length = length  # tokens that a span predicts
        most = max(files, key=lambda file: len(file.tokens))
        if len(most.tokens) <= length:
            raise BadSetting(
                f"length={length}: {most.path} has {len(most.tokens):,} tokens, and a row needs {length + 1:,}"
            )
        self._spans = [_spans(file.tokens, length) for file in files]
        self._ends = np.cumsum([len(spans) for spans in self._spans], dtype=np.int64)
        self.count = int(self._ends[-1])
        self.counts = [self.count]
        self.description = f"{self.count:,} rows of {length:,}"

    def files_of(self, rows: Ids) -> Sequence[TokenFile]:
        """Return the files that these rows come from."""
        if len(self._files) == 1:
            return self._files
        return [self._files[i] for i in distinct(self._places(rows)[0])]

    def will_need(self, rows: Ids) -> None:
        """Have the kernel read ahead what these rows need."""
        files, spans = self._places(rows)
        for i, span in zip(list_of(files), list_of(spans), strict=True):
            self._files[i].will_need(span * self._length, self._length + 1)

    def fill(self, rows: Ids, to: Ids, leaves: Sequence[Tokens]) -> None:
        """Write rows to these places of a block's leaves."""
        (tokens,) = leaves
        files, spans = self._places(rows)
        together = max(1, _GATHERED_BYTES // tokens[0].nbytes)
        for i in distinct(files):
            of_file = np.flatnonzero(files == i)
            for start in range(0, len(of_file), together):
                some = of_file[start : start + together]
                self._files[i].check_whole(spans[some] * self._length, self._length + 1)
                tokens[_run(to[some])] = self._spans[i][spans[some]]

    def _places(self, rows: Ids) -> tuple[Numbers, Numbers]:
        """Return the file of each span, and its number there."""
        files = np.searchsorted(self._ends, rows, side="right")
        before = np.concatenate(([0], self._ends[:-1]))
        return files, rows - before[files]


class Pieces(NamedTuple):
    """Documents cut so that each fits in a row; a piece begins with the last token of the one before."""

    files: Numbers
    starts: Numbers
    sizes: Numbers


class Documents:
    """Rows of documents: cut where they are longer than a row, and never beside another one's end unmarked.

    Its methods are those of ``Spans``.

    The second leaf numbers the documents of a row from 1 on, with 0 where nothing is. A full row predicts
    ``length`` tokens; several documents may share a row if they are put ``together``.
    """

    def __init__(self, files: Sequence[TokenFile], length: int, *, together: bool) -> None:
        self._files = files  # files with an index
        self._has_copies = any(file.is_copy for file in files)
        self._pieces = _pieces(files, length)
        sizes = self._pieces.sizes
        if together:
            self._order, self._firsts = packed(sizes, length + 1)
        else:
            self._order, self._firsts = np.arange(len(sizes)), np.arange(len(sizes) + 1)
        self.count = len(self._firsts) - 1
        self.counts = [self.count]
        full = sizes.sum() / (self.count * (length + 1))
        documents = sum(len(file.documents) - 1 for file in files if file.documents is not None)
        how = "packed" if together else "split"
        self.description = f"{documents:,} documents {how} into {self.count:,} rows of {length:,}, {full:.0%} full"

    def files_of(self, rows: Ids) -> Sequence[TokenFile]:
        return [self._files[i] for i in distinct(self._pieces.files[self._of(rows)])]

    def will_need(self, rows: Ids) -> None:
        for i, start, size in self._placed(self._of(rows)):
            self._files[i].will_need(start, size)

    def fill(self, rows: Ids, to: Ids, leaves: Sequence[Tokens]) -> None:
        tokens, documents = leaves
        pieces = self._of(rows)
        for i in distinct(self._pieces.files[pieces]) if self._has_copies else ():
            of_file = pieces[self._pieces.files[pieces] == i]
            self._files[i].check_whole(self._pieces.starts[of_file], self._pieces.sizes[of_file])
        firsts, ends = self._firsts[rows].tolist(), self._firsts[rows + 1].tolist()
        streams = [file.tokens for file in self._files]
        for place, first, end in zip(list_of(to), firsts, ends, strict=True):
            at = 0
            for number, (i, start, size) in enumerate(self._placed(self._order[first:end]), 1):
                tokens[place, at : at + size] = streams[i][start : start + size]
                documents[place, at : at + size] = number
                at += size
            tokens[place, at:] = 0
            documents[place, at:] = 0

    def _placed(self, pieces: Ids) -> Iterator[tuple[int, int, int]]:
        """Return file, first token and size of some pieces."""
        files, starts, sizes = (field[pieces].tolist() for field in self._pieces)
        return zip(files, starts, sizes, strict=True)

    def _of(self, rows: Ids) -> Ids:
        """Return the pieces of some rows."""
        return np.concatenate([self._order[self._firsts[row] : self._firsts[row + 1]] for row in rows.tolist()])


def _spans(tokens: Tokens, length: int) -> Tokens:
    """View tokens as rows of ``length`` + 1, each ``length`` on."""
    count = max(0, len(tokens) - 1) // length
    size = tokens.itemsize
    return np.lib.stride_tricks.as_strided(tokens, (count, length + 1), (length * size, size), writeable=False)


def _run(places: Ids) -> slice | Ids:
    """Return places as a slice if they follow one another, which is written to faster."""
    first, last = int(places[0]), int(places[-1])
    return slice(first, last + 1) if last - first == len(places) - 1 else places


def _pieces(files: Sequence[TokenFile], length: int) -> Pieces:
    """Cut documents into pieces of at most ``length`` + 1 tokens; a document of one token predicts nothing."""
    found: list[Pieces] = []
    for i, file in enumerate(files):
        if file.documents is None:
            raise BadSetting(
                f"documents=: nothing shows where documents begin in {file.path}. Megatron's index does "
                "(tools/preprocess_data.py writes it); or leave documents out, for rows of the whole stream"
            )
        firsts, sizes = file.documents[:-1], np.diff(file.documents)
        counts = np.maximum(0, -(-(sizes - 1) // length))
        of = np.repeat(np.arange(len(sizes)), counts)
        within = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = firsts[of] + within * length
        ends = np.minimum(starts + length + 1, firsts[of] + sizes[of])
        if not len(of):
            raise BadSetting(f"{file.path} has no document of two tokens or more, so there is nothing to predict")
        found.append(Pieces(np.full(len(of), i), starts, ends - starts))
    return Pieces(*(np.concatenate(field) for field in zip(*found, strict=True)))
