"""From what a user has (a loader, arrays, batches, a source) to a Source."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import numpy as np

from penstock.contracts import Source
from penstock.errors import BadSetting
from penstock.fingerprint.batch import LeavesOf
from penstock.sources.formats import named_source
from penstock.sources.plain import ArraySource, IterableSource
from penstock.tree import RaggedRows


def adapt(thing: Any, *, segments: int | None, seed: int, in_order: bool = False) -> Source:
    """Make the source for ``thing``.

    It may be a torch ``DataLoader``; a tuple, dict, dataclass, array, tensor or ``RaggedRows``,
    taken as a tree of arrays with one row per sample; a list or other
    re-iterable of batches; a Source; or a text that names one, such as
    ``"packed:FOLDER"``. ``in_order`` leaves out the shuffling that Penstock would do.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        from torch.utils.data import DataLoader

        from penstock.sources.torch.loader import adapt_loader

        if isinstance(thing, DataLoader):
            return adapt_loader(cast(Any, thing), segments=segments, seed=seed, in_order=in_order)
    if hasattr(thing, "open") and hasattr(thing, "segment_starts"):
        if getattr(thing, "shard", None) is not None:
            raise BadSetting(
                f"a {type(thing).__name__} with shard= is one rank's part, which every rank would get: make it "
                "without, and attach with shard=(rank, world)"
            )
        return thing
    if (
        isinstance(thing, (tuple, dict, np.ndarray, RaggedRows))
        or (torch is not None and isinstance(thing, torch.Tensor))
        or (dataclasses.is_dataclass(thing) and not isinstance(thing, type))
    ):
        return ArraySource(thing, shuffle=not in_order, segments=segments, seed=seed)
    if (named := named_source(thing)) is not None:
        return named.open(shuffle=not in_order, segments=segments, seed=seed)
    if _is_dataset(thing):
        raise BadSetting(
            f"a {type(thing).__name__} gives samples, not batches; "
            "give a DataLoader: DataLoader(dataset, batch_size=...)"
        )
    if thing is None:
        raise BadSetting(
            "make_loader returned None: was its `return` forgotten? Give a DataLoader, arrays, or batches"
        )
    if isinstance(thing, Iterable):
        return IterableSource(thing, seed=seed)  # pyright: ignore[reportUnknownArgumentType]
    hint = "it is a function: call it first" if callable(thing) else "give a DataLoader, arrays, or batches"
    raise BadSetting(f"a {type(thing).__name__} cannot be fed; {hint}")


def with_workers(thing: Any, workers: int | None) -> Any:
    """Return what is to be fed, with ``workers`` workers if it is a ``DataLoader``; None for its own number."""
    torch = sys.modules.get("torch")
    if workers is None or torch is None or not isinstance(thing, torch.utils.data.DataLoader):
        return thing
    if isinstance(thing.dataset, torch.utils.data.IterableDataset) and thing.num_workers <= 1 < workers:
        raise BadSetting(
            f"{workers} workers for a loader of {thing.num_workers}, over an IterableDataset: nothing shows "
            "whether that is divided among workers, and each sample could come from each of them. Leave out "
            "workers= and PENSTOCK_FEED_WORKERS, or set num_workers in the DataLoader"
        )
    from penstock.sources.torch.compat import loader_with_workers

    return loader_with_workers(thing, workers)


def witness_of(thing: Any) -> tuple[LeavesOf | None, str]:
    """Return what makes a few samples of a torch ``DataLoader`` and digests them, and why it cannot."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(thing, torch.utils.data.DataLoader):
        return None, ""
    from penstock.sources.torch.workers import hindrance, made_twice

    return partial(made_twice, thing), hindrance(thing)


def _is_dataset(thing: Any) -> bool:
    """Whether it is a torch dataset, or holds samples by number; a list holds batches."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(thing, torch.utils.data.Dataset):
        return True
    return all(hasattr(thing, name) for name in ("__getitem__", "__len__")) and not isinstance(thing, list)
