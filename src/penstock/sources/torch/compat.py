"""Every private name of torch that Penstock uses.

A release that has dropped or renamed one fails here, when the first loader is
adapted, not later with workers that never end or batches that are not written in place.
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
"""Releases of torch under which all of Penstock's tests have run (docs/hardware.md says on what)."""

_DATA_LOADER = "torch.utils.data.dataloader"
_WORKER = "torch.utils.data._utils.worker"
_COLLATE = "torch.utils.data._utils.collate"
_SHUT_DOWN = "_shutdown_workers"


def _private(module: str, name: str) -> Any:
    """Return a private name of torch."""
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
_worker_info: Callable[..., Any] = _private(_WORKER, "WorkerInfo")
_private(_WORKER, "_worker_info")
map_style_fetcher: Callable[..., Any] = _private("torch.utils.data._utils.fetch", "_MapDatasetFetcher")
_private(_DATA_LOADER, f"_MultiProcessingDataLoaderIter.{_SHUT_DOWN}")
if "_iterator" not in DataLoader.__annotations__:
    raise _missing(_DATA_LOADER, "DataLoader._iterator")


def collate_fn_map() -> dict[Any, Any]:
    """Return how ``default_collate`` collates each type, those that users have registered included."""
    return dict(_collate_fn_map)


def changed_collate_fn_map() -> dict[Any, Any] | None:
    """Return how ``default_collate`` collates each type, if that is not how torch does it alone."""
    changed = any(getattr(function, "__module__", "") != _COLLATE for function in _collate_fn_map.values())
    return collate_fn_map() if changed else None


def set_collate_fn_map(entries: dict[Any, Any]) -> None:
    """Have ``default_collate`` collate by these entries, which it tries in their order."""
    _collate_fn_map.clear()
    _collate_fn_map.update(entries)


def stacks_tensors(collate_fn: Any) -> bool:
    """Whether this is ``default_collate``, and its handling of tensors is unchanged."""
    return collate_fn is default_collate and _collate_fn_map[torch.Tensor] is collate_tensor_fn


def end_workers(iterator: Iterator[Any] | None) -> None:
    """End the workers of a loader's iterator, if it has any."""
    if (
        shut_down := getattr(iterator, _SHUT_DOWN, None)
    ) is not None:  # subclasses of DataLoader may have other iterators
        shut_down()


def workers_of(iterator: Iterator[Any] | None) -> list[BaseProcess]:
    """The workers of a loader's iterator, dead ones too."""
    return getattr(iterator, "_workers", [])


def forget_workers(loader: DataLoader[Any]) -> None:
    """Make a loader with persistent workers start new ones: its old ones are dead, and it would wait for them."""
    loader._iterator = None  # pyright: ignore[reportPrivateUsage]


def without_persistent_workers(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Copy a loader so that its workers end with each pass; a loader does not let that be set."""
    copied = copy(loader)
    vars(copied)["persistent_workers"] = False
    return copied


def default_store() -> Any:
    """Return the store by which ranks of ``torch.distributed`` found each other; None if torch has none."""
    try:
        return _private("torch.distributed.distributed_c10d", "_get_default_store")()
    except ImportError:
        return None


def loader_with_workers(loader: DataLoader[Any], workers: int) -> DataLoader[Any]:
    """Copy a loader that has made no worker yet, with ``workers``; without any goes what only workers have."""
    copied = copy(loader)
    copied.num_workers = workers
    if workers == 0:
        vars(copied).update(prefetch_factor=None, persistent_workers=False, timeout=0)
    elif copied.prefetch_factor is None:
        copied.prefetch_factor = 2  # as torch does where none is named
    return copied


def become_worker(loader: DataLoader[Any], seed: int) -> None:
    """Let a data set find, in this process, that it is worker 0 of its loader.

    Unlike a worker's, its batches are not made in shared memory: if it were killed, a name would stay there.
    """
    workers = max(1, loader.num_workers)
    info = _worker_info(id=0, num_workers=workers, seed=seed, dataset=loader.dataset)
    vars(import_module(_WORKER))["_worker_info"] = info
    torch.UntypedStorage._new_shared = classmethod(_private_storage)  # pyright: ignore


def _private_storage(kind: type[torch.UntypedStorage], size: int, *, device: Any = "cpu") -> torch.UntypedStorage:
    return kind(size, device=device)
