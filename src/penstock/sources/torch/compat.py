"""Every name of torch's that Penstock uses and torch does not promise.

A release that has dropped or renamed one fails here, when the first loader is
adapted, and not later as workers that never end or a collation that is passed over.
"""

# torch's own annotations leave a loader's settings unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from importlib import import_module
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

TESTED = ("2.13",)
"""The releases of torch with which all of Penstock's tests have run (docs/hardware.md tells on what)."""

_DATA_LOADER = "torch.utils.data.dataloader"
_COLLATE = "torch.utils.data._utils.collate"
_SHUT_DOWN = "_shutdown_workers"


def _private(module: str, name: str) -> Any:
    """A name of torch's that must be there.

    Raises:
        ImportError: it is not.
    """
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        raise _missing(module, name) from None
    return found


def _missing(module: str, name: str) -> ImportError:
    return ImportError(
        f"torch {torch.__version__} has no {module}.{name}, which Penstock needs; "
        f"it was tested with torch {', '.join(TESTED)}"
    )


collate: Callable[..., Any] = _private(_COLLATE, "collate")
collate_tensor_fn: Callable[..., Any] = _private(_COLLATE, "collate_tensor_fn")
_collate_fn_map: dict[Any, Any] = _private(_COLLATE, "default_collate_fn_map")
_private(_DATA_LOADER, f"_MultiProcessingDataLoaderIter.{_SHUT_DOWN}")
if "_iterator" not in DataLoader.__annotations__:
    raise _missing(_DATA_LOADER, "DataLoader._iterator")


def collate_fn_map() -> dict[Any, Any]:
    """How ``default_collate`` collates each type now; users may have registered types of their own."""
    return dict(_collate_fn_map)


def stacks_tensors(collate_fn: Any) -> bool:
    """Whether this is ``default_collate``, and it stacks tensors as torch made it."""
    return collate_fn is default_collate and _collate_fn_map[torch.Tensor] is collate_tensor_fn


def end_workers(iterator: Iterator[Any] | None) -> None:
    """End the workers of a loader's iterator, if it has any."""
    if (shut_down := getattr(iterator, _SHUT_DOWN, None)) is not None:  # also of loaders derived from torch's
        shut_down()


def workers_of(iterator: Iterator[Any] | None) -> list[BaseProcess]:
    """The workers of a loader's iterator, dead ones too."""
    return getattr(iterator, "_workers", [])


def forget_workers(loader: DataLoader[Any]) -> None:
    """Have a loader with persistent workers start others: those it had are dead, and it would wait for them."""
    loader._iterator = None  # pyright: ignore[reportPrivateUsage]


def without_persistent_workers(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A copy of a loader whose workers end with each pass; a loader refuses to have that set."""
    copied = copy(loader)
    vars(copied)["persistent_workers"] = False
    return copied
