"""Rows of different length as one leaf of a batch."""

# Rows are of any array library.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np

from penstock.basics.sizes import check_one_of
from penstock.errors import BadSetting

Give = Literal["ragged", "padded"]


class RaggedRows:
    """Rows of different length, one after the other in one array: row i is ``values[offsets[i]:offsets[i + 1]]``.

    A leaf of a source's batches, one row a sample. Trainers get ``RaggedRows`` again, or with ``give="padded"`` an
    array of shape ``(rows, longest row of the batch, *item)``, filled with 0.

    Args:
        values: The items of all rows, shape ``(total, *item)``: a NumPy array or a torch tensor.
        offsets: Where each row begins, from 0 on, and where the last one ends: int64, shape ``(rows + 1,)``.
        give: What trainers get.

    Raises:
        BadSetting: the offsets do not cut these values into rows.

    Examples:
        >>> rows = penstock.RaggedRows.of([np.array([1, 2, 3]), np.array([4])])
        >>> rows[1].tolist(), rows.lengths.tolist()
        ([4], [3, 1])
        >>> rows.padded().tolist()
        [[1, 2, 3], [4, 0, 0]]
    """

    def __init__(self, values: Any, offsets: Any, give: Give = "ragged") -> None:
        check_one_of("give", give, get_args(Give))
        self.values: Any = values if hasattr(values, "shape") else np.asarray(values)
        is_known = isinstance(self.values, (np.ndarray, np.generic)) or is_tensor(
            values
        )  # jax's, say, are trusted
        self.offsets: Any = _checked(self.values, offsets) if is_known else offsets
        self.give: Give = give

    @classmethod
    def of(cls, rows: Sequence[Any], give: Give = "ragged") -> RaggedRows:
        """Join one array, or one tensor, a row; all of one type and shape of item, at least one."""
        arrays = [row if is_tensor(row) else np.asarray(row) for row in rows]
        kinds = {f"{row.dtype} of shape {('…', *row.shape[1:])}" for row in arrays}
        if len(kinds) != 1 or not arrays[0].shape:
            raise BadSetting(
                f"{len(arrays)} rows of {' and '.join(sorted(kinds)) or 'no type'} make no ragged leaf: give at "
                "least one, all of one type and shape of item, also empty ones: np.array([], np.int64)"
            )
        return cls(_joined(arrays), offsets_of(np.array([len(row) for row in arrays])), give)

    @classmethod
    def concatenated(cls, parts: Sequence[RaggedRows]) -> RaggedRows:
        """Join the rows of several, of one type, at least one."""
        lengths = _joined([part.lengths for part in parts])
        return cls(_joined([part.values for part in parts]), offsets_of(lengths), parts[0].give)

    @property
    def lengths(self) -> Any:
        """How many items each row has, shape ``(rows,)``."""
        return self.offsets[1:] - self.offsets[:-1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def __getitem__(self, rows: Any) -> Any:
        """Return one row's array, or the ``RaggedRows`` of a slice (views) or of an array of rows (copies)."""
        if isinstance(rows, slice) and rows.step in (None, 1):
            start, stop, _ = rows.indices(len(self))
            edges = self.offsets[start : max(start, stop) + 1]
            return RaggedRows(self.values[int(edges[0]) : int(edges[-1])], edges - edges[0], self.give)
        starts, ends = self.offsets[:-1][rows], self.offsets[1:][rows]
        if not starts.shape:
            return self.values[int(starts) : int(ends)]
        lengths = ends - starts
        picked = positions(starts, lengths, int(lengths.sum()))
        if not is_tensor(picked):
            return RaggedRows(self.values[picked], offsets_of(lengths), self.give)
        values = _bytes_of_items(self.values, 1).index_select(0, picked).view(self.values.dtype)
        return RaggedRows(values.reshape(-1, *self.values.shape[1:]), offsets_of(lengths), self.give)

    def tolist(self) -> list[Any]:
        """Return a list of arrays, one a row: views."""
        return [self.values[start:stop] for start, stop in pairwise(self.offsets.tolist())]

    def padded(self, fill: Any = 0, length: int | None = None) -> Any:
        """Return an array of shape ``(rows, length, *item)``: each row, and ``fill`` after its end.

        ``length`` is that of the longest row unless given. BadSetting is raised if a row is longer.
        """
        longest = int(self.lengths.max()) if len(self) else 0
        if length is not None and longest > length:
            raise BadSetting(
                f"length={length}: a row has {longest:,} items. Cut the rows first, or leave length out"
            )
        shape = (len(self), longest if length is None else length, *self.values.shape[1:])
        if is_tensor(self.values):
            out = self.values.new_full(shape, fill)
        elif isinstance(self.values, np.ndarray):
            out = np.zeros(shape, self.values.dtype)
            if fill:  # a 0 would become the text "0"
                out[:] = fill
        else:
            raise BadSetting('only rows of NumPy or torch are padded here: have the source say give="padded"')
        self.copy_into(out)
        return out

    def copy_into(self, out: Any) -> None:
        """Copy each row to the beginning of that of ``out``, of shape ``(rows, longest or more, *item)``."""
        rows, length = out.shape[:2]
        if not is_tensor(out):
            at = positions(np.arange(rows) * length, self.lengths, len(self.values))
            out.reshape(rows * length, *out.shape[2:])[at] = self.values
            return
        starts = sys.modules["torch"].arange(rows, device=out.device) * length
        at = positions(starts, self.lengths, len(self.values))
        _bytes_of_items(out, 2).index_copy_(0, at, _bytes_of_items(self.values, 1))

    def nested(self) -> Any:
        """Return a nested tensor of torch's, in jagged layout, on the same memory."""
        import torch

        make: Any = torch.nested.nested_tensor_from_jagged
        return make(torch.as_tensor(self.values), torch.as_tensor(self.offsets))


def is_tensor(array: object) -> bool:
    """Whether it is a torch tensor; imports nothing."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def positions(starts: Any, lengths: Any, total: int) -> Any:
    """Return where the ``total`` items of rows lie, one row after the other, that begin at ``starts``."""
    before = lengths.cumsum(0) - lengths
    if not is_tensor(starts):
        return np.arange(total) + np.repeat(np.asarray(starts - before), np.asarray(lengths))
    torch = sys.modules["torch"]
    shifts = torch.repeat_interleave(starts - before, lengths, output_size=total)
    return torch.arange(total, device=starts.device) + shifts


def offsets_of(lengths: Any) -> Any:
    """Return where rows of these lengths begin, and the last one ends."""
    if is_tensor(lengths):
        return sys.modules["torch"].nn.functional.pad(lengths.cumsum(0), (1, 0))
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def _joined(arrays: list[Any]) -> Any:
    return sys.modules["torch"].cat(arrays) if is_tensor(arrays[0]) else np.concatenate(arrays)


def _bytes_of_items(tensor: Any, axes: int) -> Any:
    """View the bytes of a tensor's items, shape (items, bytes): torch cannot index all its types."""
    items, flat = tensor.shape[:axes].numel(), tensor.detach().resolve_conj().contiguous()
    return flat.reshape(items, tensor.shape[axes:].numel()).view(sys.modules["torch"].uint8)


def _checked(values: Any, offsets: Any) -> Any:
    """Return offsets as int64 beside the values; those on a GPU, which would have to be waited for, unchecked."""
    if not is_tensor(offsets) or offsets.device.type == "cpu":
        offsets = np.asarray(offsets)
        right = offsets.ndim == 1 and values.ndim and len(offsets) and offsets.dtype.kind in "iu"
        right = right and offsets[0] == 0 and offsets[-1] == len(values)
        if not right or (offsets[1:] < offsets[:-1]).any():
            raise BadSetting(
                f"offsets of {offsets.dtype}, shape {offsets.shape}, cut no values of shape {(*values.shape,)}: "
                "give whole numbers that begin with 0, never fall, and end with the number of items"
            )
    if not is_tensor(values):
        return np.asarray(offsets, np.int64)
    torch = sys.modules["torch"]
    return torch.as_tensor(offsets, dtype=torch.int64, device=values.device)
