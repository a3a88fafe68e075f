"""Files of tokens as a source, alone or several data sets in given shares."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np

from penstock.basics.sizes import random_seed, whole_number
from penstock.contracts import Ids, SourceBlock
from penstock.errors import BadSetting, SourceError
from penstock.io.cache.cache import Cache
from penstock.memory.room import aligned
from penstock.memory.slots import Filled, Slots, place
from penstock.sources.order import Planned, digest, permutation
from penstock.sources.sharding import Alone, rank_of
from penstock.sources.tokens.rows import Documents, Spans, distinct
from penstock.sources.tokens.token_files import TokenFile, Tokens, opened
from penstock.tree import build, describe

_SLOTS = 2
"""A block is written while the one before is announced."""
_READ_AHEAD_BLOCKS = 64
"""Once a block was not in the page cache, this many are read ahead."""
_MOST_REPEATS = 100
_EXTRA = 2
_SHOWN = 3

Named = str | Path
Documenting = Literal["split", "packed"]


class TokenSource(Alone):
    """Feeds rows of ``length`` + 1 tokens, each token but the first predicted once an epoch.

    A batch is an array of shape ``(rows, length + 1)`` in the type of the files; inputs and targets are
    ``batch[:, :-1]`` and ``batch[:, 1:]``. With ``documents`` it is a dict: ``"tokens"``, and ``"documents"`` of
    the same shape, which numbers the documents of each row from 1 on, and has 0 where a row is empty.

    Args:
        files: A file, a folder, a pattern such as ``"fineweb/*.bin"``, or several: tokens without a header
            (nanoGPT), with llm.c's, as ``.npy``, or Megatron's ``.bin`` beside its ``.idx``. Or a dict from these
            to weights: the data sets' shares of a cycle, in which the one that is largest for its share comes
            once, and others more often.
        length: Tokens that a row predicts.
        batch_size: Rows of a block.
        dtype: Type of tokens without a header: ``"uint16"`` unless given; ``"uint32"``, ``"int32"``, ``"int64"``.
        documents: None for rows of the whole stream, whatever documents they cross; ``"split"`` for one
            document or a piece of one in each row; ``"packed"`` for as many as fit. Needs Megatron's index.
        cache: Where the files are fetched to, whole and once, before the first batch, and mapped; objects of a
            store (``"s3://bucket/train.bin"``) need one. Its ``memory`` is not used: the page cache holds what is
            mapped.
        shuffle: Draw a new random order in each cycle; False for the order of the files.
        drop_last: Whether trainers leave out of each epoch the rows that fill none of their batches, unless they
            say otherwise.
        segments: Parts of a cycle that are shuffled each by itself; None for one.
        seed: Random seed of the order.
        shard: ``(rank, world)`` of a data-parallel run that reads this source alone, without a feed; ``(0, 1)`` to
            give each rank all of it.

    Raises:
        BadSetting: there are no such files, they are no files of tokens, or an argument is out of range.

    Examples:
        >>> np.arange(1001, dtype=np.uint16).tofile("train.bin")
        >>> source = penstock.TokenSource("train.bin", length=100, batch_size=5)
        >>> [batch.shape for batch in source]
        [(5, 101), (5, 101)]
    """

    def __init__(
        self,
        files: Named | Sequence[Named] | Mapping[Any, float],
        *,
        length: int,
        batch_size: int = 128,
        dtype: Literal["uint16", "uint32", "int32", "int64"] | None = None,
        documents: Documenting | None = None,
        cache: Cache | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        segments: int | None = None,
        seed: int = 0,
        shard: tuple[int, int] | None = None,
    ) -> None:
        length = whole_number("length", length, 1, 2**24)
        seed = random_seed(seed)
        if dtype not in (None, "uint16", "uint32", "int32", "int64"):
            raise BadSetting(f"dtype={dtype!r}: tokens without a header are uint16, uint32, int32 or int64")
        if documents not in (None, "split", "packed"):
            raise BadSetting(f"documents={documents!r}: it must be 'split', 'packed', or left out")
        named = [files] if isinstance(files, (str, Path)) else list(files) if isinstance(files, Iterable) else []  # pyright: ignore[reportUnnecessaryIsInstance]
        if not named or "" in map(str, named):
            raise BadSetting(f"files={files!r}: no files were named")
        Cache.check(cache)
        found = opened(named, dtype, cache)
        self._files = [file for own in found.values() for file in own]
        if not isinstance(files, Mapping):
            self._rows: Spans | Documents | Mixture = _rows_of(self._files, length, documents)
        elif shuffle:
            parts = {name: _rows_of(own, length, documents) for name, own in found.items()}
            self._rows = Mixture(parts, {str(name): weight for name, weight in files.items()}, seed)
        else:
            raise BadSetting(
                "shuffle=False: data sets with weights are mixed by shuffling; leave one of the two out"
            )
        self._visit(self._rows.count, batch_size, segments, seed, shuffle=shuffle, drop_last=drop_last)
        self.shard = rank_of(shard)
        names = [os.path.basename(file.path) for file in self._files]
        self.order = digest("tokens", self._order.digest, length, documents, tuple(self._rows.counts), names)
        tokens = np.empty((1, length + 1), self._files[0].tokens.dtype)
        numbers = np.empty((1, length + 1), np.int32)
        example: Any = tokens if documents is None else {"tokens": tokens, "documents": numbers}
        self._layout, _, leaves = describe(example)
        self._leaves: list[Tokens] = leaves
        self.slot_bytes = self.block_bytes = sum(
            aligned(leaf.nbytes * min(self.batch_size, self.samples)) for leaf in self._leaves
        )
        self._slots: Slots | None = None

    @property
    def description(self) -> str:
        tokens = sum(len(file.tokens) for file in self._files)
        many = f"{len(self._files):,} files" if len(self._files) > 1 else str(self._files[0].path)
        return f"{tokens:,} tokens of {many}: {self._rows.description}"

    def load(self, plans: Iterator[Planned], cycle: int) -> Iterator[SourceBlock]:
        for file in self._files:
            file.check_unchanged()
        ahead = 0
        for plan, coming in pairwise(chain(plans, [None])):
            assert plan is not None
            if ahead and coming is not None:
                self._rows.will_need(coming.ids)
            faults = _major_faults()
            block = self._block(plan)
            ahead = _READ_AHEAD_BLOCKS if _major_faults() > faults else max(0, ahead - 1)
            yield block

    def fill(self, slots: Slots) -> int:
        self._slots = slots
        return _SLOTS

    def close(self) -> None:
        self._slots = None

    def _block(self, plan: Planned) -> SourceBlock:
        rows = len(plan.ids)
        if not rows:
            return plan.block(None)
        slot = None if self._slots is None else self._slots.take()
        if slot is None or self._slots is None:
            leaves = [np.empty((rows, *leaf.shape[1:]), leaf.dtype) for leaf in self._leaves]
            tree = build(self._layout, leaves)
        else:
            placement = place(self._layout, [leaf.nbytes * rows for leaf in self._leaves])
            parts = placement.leaves_in(self._slots.memory(slot))
            leaves = [
                part.view(leaf.dtype).reshape(rows, -1) for part, leaf in zip(parts, self._leaves, strict=True)
            ]
            tree = Filled(slot, rows, placement)
        self._rows.fill(plan.ids, np.arange(rows), leaves)
        files = self._rows.files_of(plan.ids)
        for file in files:
            file.check_unchanged()
        if leaves[0].dtype.kind == "i" and (least := int(leaves[0].min())) < 0:
            where = " or ".join(file.path for file in files[:_SHOWN]) + " or others" * (len(files) > _SHOWN)
            raise SourceError(f"{where} has the token {least}: ids are 0 or more. Write the file again without it")
        return plan.block(tree)


def _rows_of(files: Sequence[TokenFile], length: int, documents: Documenting | None) -> Spans | Documents:
    if documents is None:
        return Spans(files, length)
    return Documents(files, length, together=documents == "packed")


def _major_faults() -> int:
    """Pages that this thread had to wait for a disk for."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


class Mixture:
    """Rows of several data sets, each with its share of a cycle; methods are those of ``Spans``.

    A cycle is as short as can be while every row comes at least once: the data set that is largest for its share
    comes once, and the others again and again. Those rows of a data set that come once more than its others are
    drawn at random from ``seed``, and are the same in each cycle. ``parts`` has the rows of each data set by its
    name, and ``weights`` their shares, in any unit.
    """

    def __init__(self, parts: Mapping[str, Spans | Documents], weights: Mapping[str, float], seed: int) -> None:
        self._parts = list(parts.values())
        shares = _shares(weights)
        cycle = max(part.count / share for part, share in zip(self._parts, shares, strict=True))
        counts = [round(cycle * share) for share in shares]
        often, name = max(
            (count / part.count, name) for count, (name, part) in zip(counts, parts.items(), strict=True)
        )
        if often > _MOST_REPEATS:
            raise BadSetting(
                f"{name} would come {often:,.0f} times in each epoch, which has every other row at least once: "
                f"at most {_MOST_REPEATS} times make sense. Give {name} a smaller weight"
            )
        self._ends = np.cumsum(counts, dtype=np.int64)
        # Rows of each that come before the first of those that come once more than others.
        self._whole = [count // part.count * part.count for part, count in zip(self._parts, counts, strict=True)]
        self._again = [
            permutation(part.count, seed % 2**64, _EXTRA, i)[: count % part.count]
            for i, (part, count) in enumerate(zip(self._parts, counts, strict=True))
        ]
        self.count = int(self._ends[-1])
        self.counts = counts
        shown = (
            f"{share:.1%} {name} ({count / part.count:.2f} times {part.description})"
            for share, count, (name, part) in zip(shares, counts, parts.items(), strict=True)
        )
        self.description = f"{self.count:,} rows: {', '.join(shown)}"

    def files_of(self, rows: Ids) -> Sequence[TokenFile]:
        return [file for part, own, _ in self._divided(rows) for file in part.files_of(own)]

    def will_need(self, rows: Ids) -> None:
        for part, own, _ in self._divided(rows):
            part.will_need(own)

    def fill(self, rows: Ids, to: Ids, leaves: Sequence[Tokens]) -> None:
        for part, own, which in self._divided(rows):
            part.fill(own, to[which], leaves)

    def _divided(self, rows: Ids) -> Iterator[tuple[Spans | Documents, Ids, Ids]]:
        """Yield each data set that has some of the rows, their numbers in it, and which of the rows they are."""
        of = np.searchsorted(self._ends, rows, side="right")
        for i in distinct(of):
            part, which = self._parts[i], np.flatnonzero(of == i)
            within = rows[which] - (self._ends[i - 1] if i else 0)
            again = within - self._whole[i]
            own = within % part.count
            own[again >= 0] = self._again[i][again[again >= 0]]
            yield part, own, which


def _shares(weights: Mapping[str, float]) -> list[float]:
    for name, weight in weights.items():
        if not isinstance(weight, Real) or not 0 < weight < math.inf:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadSetting(f"the weight of {name} is {weight!r}: it must be a number above 0")
    total = sum(weights.values())
    return [weight / total for weight in weights.values()]
