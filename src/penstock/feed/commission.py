"""What ``share`` hands to the feeder's process: a function to call there, and what it needs of ``__main__``."""

# cloudpickle has no type stubs.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable
from types import FunctionType
from typing import IO, Any, NamedTuple

import cloudpickle

from penstock.errors import BadSetting
from penstock.feed.recipe import Recipe
from penstock.feed.settings import Settings


class Commission(NamedTuple):
    """What a new feeder process is told."""

    make_loader: Callable[[], Any]
    name: str
    settings: Settings
    recipe: Recipe
    argv: list[str]


class _Pickler(cloudpickle.Pickler):
    """Pickles, and notes the classes and functions of ``__main__`` that it has come by."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.of_main: dict[str, Any] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, FunctionType)) and obj.__module__ == "__main__":
            self.of_main[obj.__qualname__] = obj
        return super().reducer_override(obj)


def pickle_commission(commission: Commission) -> bytes:
    """A commission, and what of ``__main__`` its loader uses.

    Raises:
        BadSetting: the loader's function holds something that cannot be pickled.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(commission)
        pickler.dump(dict(pickler.of_main))
    except Exception as error:
        raise BadSetting(
            f"make_loader cannot be handed to the feeder's process: {error}. Let it make what it needs "
            "(files, locks, connections) itself, instead of taking it from outside"
        ) from error
    return file.getvalue()


def read_commission(file: IO[bytes]) -> Commission:
    """Unpickle a commission, and put what lived in the caller's ``__main__`` into this process's.

    A loader's worker pickles its batches by the names of their types.
    """
    unpickler = pickle.Unpickler(file)
    commission: Commission = unpickler.load()
    sys.argv = commission.argv
    main = sys.modules["__main__"]
    for name, thing in unpickler.load().items():
        if name.isidentifier():  # not those inside a function or class
            setattr(main, name, thing)
    return commission
