"""Guards what a program's DataLoaders return when they are iterated.

The loaders themselves stay what they are: frameworks take them apart and build new ones, but all of them end in
``_get_iterator``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

Guard = Callable[[Any, Callable[[], Any]], Any]
"""Given a loader and what makes its iterator, returns that iterator, or one that stands in its place."""


GUARDS: list[Guard] = []
"""The last is asked first: what it counts as waiting begins at the script's own ``iter()``."""


def hook(loader_class: type) -> None:
    """Guard the iterators of all loaders of a class, except in the workers of another loader."""
    original: Any = vars(loader_class).get("_get_iterator")
    if hasattr(original, "__wrapped__"):
        return
    code = getattr(original, "__code__", None)
    if code is None or code.co_argcount != 1 or code.co_kwonlyargcount:
        raise TypeError(f"{loader_class.__qualname__}._get_iterator is not the method that is known")

    @functools.wraps(original)
    def _get_iterator(self: Any) -> Any:
        from torch.utils.data import get_worker_info

        make = partial(original, self)
        if get_worker_info() is None:
            for guard in GUARDS:
                make = partial(guard, self, make)
        return make()

    loader_class._get_iterator = _get_iterator
