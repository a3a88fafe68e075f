"""What of an object's class its fingerprint goes by: its name, and attributes that do not count."""

from __future__ import annotations

import sys
from functools import cached_property, lru_cache
from types import FunctionType

from penstock.fingerprint.bytecode import stored_by
from penstock.fingerprint.owners import assigned_in, file_of, is_users


def name_of(kind: type) -> str:
    """Return a class's name; of one that a function makes, what is left of it on its way to another process."""
    return kind.__name__ if "<locals>" in kind.__qualname__ else kind.__qualname__


@lru_cache(maxsize=4096)
def is_or_inherits(kind: type, name: str) -> bool:
    return any(f"{one.__module__}.{one.__qualname__}" == name for one in kind.__mro__)


@lru_cache(maxsize=1024)
def not_counted(kind: type) -> frozenset[str]:
    """List attributes that only caches fill, and the epoch that a sampler's or a stream's ``set_epoch`` stores."""
    files = {file_of(one.__module__) or "" for one in kind.__mro__ if is_users(one.__module__)}
    masked = {
        name for one in kind.__mro__ for name, value in vars(one).items() if isinstance(value, cached_property)
    }
    if masked:  # a value that a program gives is none that was computed
        masked -= assigned_in(*sys.argv[:1], *files)
    set_epoch = getattr(kind, "set_epoch", None)
    if isinstance(set_epoch, FunctionType) and hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__"):
        masked |= {name for name in stored_by(set_epoch.__code__) if "epoch" in name}
    if is_or_inherits(kind, "transformers.tokenization_utils_base.PreTrainedTokenizerBase"):
        masked |= {"cache", "deprecation_warnings"}
    return frozenset(masked)
