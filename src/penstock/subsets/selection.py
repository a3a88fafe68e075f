"""Some samples of a data set, by id, or as one bit for each sample."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from penstock.contracts import ByteArray, Ids
from penstock.errors import BadSetting

Mask = npt.NDArray[np.bool_]


class Bitmap:
    """Some samples of a data set, or what several such sets hold together."""

    def __init__(self, packed: ByteArray, digests: frozenset[str]) -> None:
        self.packed = packed  # a bit for each sample, the first one's lowest
        self.digests = digests  # digests of the selections that it consists of
        self._covered: dict[frozenset[str], bool] = {}

    def __len__(self) -> int:
        return int.from_bytes(self.packed.tobytes(), "little").bit_count()

    def holds(self, ids: Ids) -> Mask:
        """Return which of the ids are in the set."""
        return (self.packed[ids >> 3] >> (ids & 7).astype(np.uint8) & 1).view(np.bool_)

    def covers(self, other: Bitmap) -> bool:
        """Whether all samples of another set of the same length are in this one."""
        if other.digests <= self.digests:
            return True
        if other.digests not in self._covered:
            self._covered[other.digests] = not (other.packed & ~self.packed).any()
        return self._covered[other.digests]


def union(sets: Sequence[Bitmap]) -> Bitmap:
    """Return what sets of one length hold together."""
    packed = np.bitwise_or.reduce([each.packed for each in sets])
    return Bitmap(packed, frozenset[str]().union(*(each.digests for each in sets)))


_SHOWN = 3
_MOST = 2**33
"""Largest id: a feeder is sent a bit for each number up to the largest, before its data set is known."""


class Selection:
    """Some samples of a data set, each once, by their ids: ``dataset[id]`` is the sample.

    Args:
        samples: Ids; a mask with a bool for each sample of the data set; the path of a ``.npy`` file with
            either; or a Selection.
        weights: A number for each of the ids (of a mask: for each that is selected, in order), or one for all.

    Attributes:
        ids: The ids, rising.
        weights: Their weights, float32; None if none were given.
        digest: Digest of ids and weights.
        masked: Length of the mask that it was made of; None if it was none.

    Raises:
        BadSetting: they are no ids or mask, none is selected, or one is there twice; or the weights do not fit.

    Examples:
        >>> penstock.Selection([7, 3, 5]).ids.tolist()
        [3, 5, 7]
        >>> penstock.Selection(np.arange(6) % 2 == 0).ids.tolist()
        [0, 2, 4]
    """

    def __init__(
        self,
        samples: Selection | npt.ArrayLike | Sequence[int] | str | PathLike[str],
        weights: npt.ArrayLike | None = None,
    ) -> None:
        given, self.masked = _ids_of(samples)
        order = np.argsort(given, kind="stable")
        self.ids: Ids = given[order]
        if (twice := self.ids[1:][self.ids[1:] == self.ids[:-1]]).size:
            hint = ". A mask has bools: mask.astype(bool)" if self.ids[-1] <= 1 else ""
            raise BadSetting(
                f"select: {_shown(np.unique(twice))} selected more than once; an epoch gives each sample "
                f"once{hint}"
            )
        self.ids.setflags(write=False)
        if isinstance(samples, Selection) and weights is None:
            self.weights = samples.weights
        else:
            self.weights = None if weights is None else _weights_of(weights, len(given))[order]
        content = self.ids.tobytes() + (b"" if self.weights is None else b"weights" + self.weights.tobytes())
        self.digest = hashlib.sha256(content).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"<penstock.Selection of {len(self):,} samples, {self.digest}>"

    def bitmap(self, samples: int | None = None) -> Bitmap:
        """Return it as a set over a data set of this size; if None, just large enough for its ids.

        Raises:
            BadSetting: as ``check`` does.
        """
        self.check(samples)
        packed = np.zeros(-(-(samples or int(self.ids[-1]) + 1) // 8), np.uint8)
        np.bitwise_or.at(packed, self.ids >> 3, np.left_shift(1, self.ids & 7).astype(np.uint8))
        return Bitmap(packed, frozenset([self.digest]))

    def check(self, samples: int | None) -> None:
        """Refuse ids that a data set of this size does not have; None is an unknown size.

        Raises:
            BadSetting: there are such ids, or the selection was made of a mask of another length.
        """
        if samples is None:
            return
        if self.masked not in (None, samples):
            raise BadSetting(f"select: some of {self.masked:,} samples, and the data set has {samples:,}")
        if (beyond := self.ids[self.ids >= samples]).size:
            raise BadSetting(
                f"select: {_shown(beyond)} not in a data set of {samples:,} samples (0 to {samples - 1:,})"
            )

    def weights_of(self, ids: Ids) -> npt.NDArray[np.float32]:
        """Return the weights of some of the selected ids; 1 where none were given.

        Raises:
            BadSetting: one of them is not selected.
        """
        places = np.searchsorted(self.ids, ids)
        if (foreign := ids[self.ids.take(places, mode="clip") != ids]).size:
            raise BadSetting(f"weights: {_shown(foreign)} not selected")
        return np.ones(len(ids), np.float32) if self.weights is None else self.weights[places]

    def part(self, places: Ids) -> Selection:
        """Return the samples that stand at some places of ``ids``, with their weights."""
        chosen = Selection(self.ids[places], None if self.weights is None else self.weights[places])
        chosen.masked = self.masked
        return chosen


def selection_of(given: Any) -> Selection | None:
    """Return what ``select=`` means: a Selection, or None for all samples."""
    return given if given is None or isinstance(given, Selection) else Selection(given)


def _ids_of(samples: Any) -> tuple[Ids, int | None]:
    """Return the ids, and the length of the mask if it was one."""
    if isinstance(samples, Selection):
        return samples.ids, samples.masked
    if isinstance(samples, (str, PathLike)):
        samples = _read(Path(cast("str", samples)))
    if hasattr(samples, "worth"):
        raise BadSetting("select: scores select nothing by themselves: penstock.select.top(scores, fraction) does")
    if isinstance(samples, np.ma.MaskedArray):
        raise BadSetting("select: a masked array: give the ids that count, samples.compressed()")
    try:
        given = np.asarray(samples)
    except (ValueError, TypeError, RuntimeError):  # lists of several lengths, sparse tensors
        given = np.empty((), object)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "bui"):
        raise BadSetting(
            f"select: a {type(samples).__name__} ({given.ndim} dimensions of {given.dtype}): it must be a list of "
            "ids, a mask with one bool a sample, or a .npy file with either"
        )
    masked = len(given) if given.dtype.kind == "b" else None
    ids = np.flatnonzero(given) if masked is not None else given
    if not ids.size:
        raise BadSetting(f"select: none of {masked:,} samples" if masked is not None else "select: no sample")
    if ids.min() < 0:
        raise BadSetting(f"select: {_shown(ids[ids < 0])} below 0: an id counts from the data set's beginning")
    if ids.max() > _MOST:
        raise BadSetting(f"select: {_shown(ids[ids > _MOST])} too large for an id")
    return ids.astype(np.int64), masked


def _read(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise BadSetting(f"select: there is no file {path}") from None
    except (OSError, ValueError, EOFError) as error:
        raise BadSetting(f"select: {path} is no .npy file of numbers: {error}") from None


def _weights_of(weights: npt.ArrayLike, count: int) -> npt.NDArray[np.float32]:
    try:
        given = np.asarray(weights)
    except (ValueError, TypeError, RuntimeError) as error:  # a tensor that requires a gradient, or of bfloat16
        raise BadSetting(f"weights: {error}. Of a tensor give weights.detach().float().cpu()") from None
    if given.ndim > 1 or given.dtype.kind not in "buif" or (given.ndim == 1 and len(given) != count):
        raise BadSetting(
            f"weights: {given.shape} of {given.dtype}, for {count:,} selected samples: one number each"
        )
    with np.errstate(over="ignore"):
        single = np.broadcast_to(given, count).astype(np.float32)
    if not np.isfinite(single).all() or (single < 0).any():
        raise BadSetting("weights: some are negative, infinite as float32, or not a number")
    return single


def _shown(ids: Ids) -> str:
    more = len(ids) - _SHOWN
    some = ", ".join(str(id) for id in ids[:_SHOWN].tolist())
    return f"id {some} is" if len(ids) == 1 else f"ids {some}{f' and {more:,} more' if more > 0 else ''} are"
