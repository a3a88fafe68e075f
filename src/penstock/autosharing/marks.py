"""The two ways in for a script that may be changed by a line: ``share(loader)`` and ``autoshare()``."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

from penstock.autosharing import guard
from penstock.autosharing.hook import ShareOptions, share_all
from penstock.basics.sizes import whole_number
from penstock.inject import hook

_MODULES = {
    "torch.utils.data.dataloader": "DataLoader",
    "torchdata.stateful_dataloader.stateful_dataloader": "StatefulDataLoader",
}


def autoshare(
    name: str = "",
    *,
    workers: int | None = None,
    only: str = "",
    iterable: bool = False,
    explain: bool = False,
    strict: bool = False,
) -> None:
    """Have this script's training loaders read feeds from now on, as ``penstock run --share`` does.

    For scripts and notebooks that build no ``DataLoader`` of their own; those of libraries are found. A loader
    that cannot be shared runs as it is, and stderr says why in one line.

    Args:
        name: First part of the feeds' names; the script's unless given.
        workers: Workers of a feed's loader; as many as the script's loader has unless given.
        only: Pattern (``*``, ``?``) of the data sets' classes, or of the places (``train.py:12``), to be shared.
        iterable: Share loaders over an ``IterableDataset``, too.
        explain: Tell what each loader is taken for, and why.
        strict: Raise what hinders sharing.

    Raises:
        BadSetting: ``workers`` is no whole number.
    """
    if workers is not None:
        workers = whole_number("workers", workers, 0, 10_000)
    guard.options = ShareOptions(
        name=name, workers=workers, only=only, iterable=iterable, explain=explain, strict=strict
    )
    import_module("torch.utils.data")
    with suppress(ImportError):
        import_module("torchdata.stateful_dataloader")  # a library may import it later
    _hook()


def marked(loader: Any, name: str) -> Any:
    """Have a loader read a feed from now on, and any that a library makes anew of its data set; return it."""
    guard.marks[id(loader.dataset)] = loader.dataset, name
    _hook()
    return loader


def _hook() -> None:
    for module, kind in _MODULES.items():
        if module in sys.modules:
            hook.hook(getattr(sys.modules[module], kind))
    share_all()
