"""Tells which sample a number that is none comes from."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from penstock.errors import BadSetting

if TYPE_CHECKING:
    from penstock.select.task import Batch


def check_finite(what: str, found: Tensor, batch: Batch) -> None:
    """Check what a model gave for each sample of a batch, shape ``(n, ...)``.

    Raises:
        BadSetting: some is NaN or infinite; the message names the samples that hold such numbers themselves.
    """
    if torch.isfinite(found).all():
        return
    wrong, holding = _rows(found), {row for leaf in _tensors(batch.content) for row in _rows(leaf)}
    rows = sorted(holding) or wrong
    who = ", ".join(f"id {batch.ids[row]:,}" for row in rows[:3]) + (
        f" and {len(rows) - 3:,} more" * (len(rows) > 3)
    )
    why = f"{who} of {batch.of}" + " hold NaN or infinity" * bool(holding)
    if not holding and len(wrong) == len(found):
        why = f"no sample of {batch.of} holds NaN or infinity: the model has diverged"
    raise BadSetting(f"{what}: {len(wrong):,} of a batch's {len(found):,} are no finite numbers: {why}")


def _rows(values: Tensor) -> list[int]:
    """Return the rows that hold a number that is none."""
    return torch.nonzero(~torch.isfinite(values).reshape(len(values), -1).all(1))[:, 0].tolist()


def _tensors(content: Any) -> Iterator[Tensor]:
    if isinstance(content, Tensor):
        yield from [content] if content.dim() and content.is_floating_point() else []
    elif isinstance(content, Mapping | list | tuple):
        parts = content.values() if isinstance(content, Mapping) else content
        for part in cast("list[Any]", parts):
            yield from _tensors(part)
