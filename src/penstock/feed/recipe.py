"""A fingerprint of ``make_loader``, so that an edited one is not taken for the one that feeds."""

from __future__ import annotations

import dis
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_MOST_ITEMS = 1000
_NOT_CODE = ("__doc__", "__module__", "__firstlineno__", "__static_attributes__", "__dict__", "__weakref__")


def recipe_of(make_loader: Callable[[], Any]) -> str:
    """A fingerprint of a function's code and of what it uses from its own module.

    That is: functions and classes of that module, and numbers, strings and
    paths, be they constants, globals, defaults, or held by a closure or a
    partial, also as attributes of an object that the code reads (``args.data``);
    of a long list its length and first thousand items. What it imports, and
    the rest of objects that it holds, do not count, nor do comments.
    Fingerprints of two versions of Python cannot be compared, so each begins
    with its own.
    """
    digest = hashlib.sha256()
    for part in _Walk(getattr(_function(make_loader), "__module__", None)).parts(make_loader):
        digest.update(part.encode(errors="surrogatepass") + b"\0")
    return f"{sys.version_info.major}.{sys.version_info.minor} {digest.hexdigest()[:16]}"


def same_recipe(one: str, other: str) -> bool:
    """Whether two fingerprints may be of the same function; an empty one is of none."""
    return one == other or one.partition(" ")[0] != other.partition(" ")[0]


def _function(thing: Any) -> Any:
    while isinstance(thing, partial):
        thing = cast("partial[Any]", thing).func
    return thing


class _Walk:
    """Yields what tells a thing from others, in a fixed order.

    Args:
        module: Where the code lives that counts.
    """

    def __init__(self, module: str | None) -> None:
        self._module = module
        self._seen: set[int] = set()  # code, all of which lives as long as what is walked
        self._within: set[int] = set()  # containers

    def parts(self, thing: Any) -> Iterator[str]:
        if type(thing) in _PLAIN or isinstance(thing, PurePath):
            yield repr(thing)
        elif isinstance(thing, (tuple, list, set, frozenset, dict)):
            if id(cast("object", thing)) not in self._within:
                self._within.add(id(cast("object", thing)))
                yield from self._items(thing)
                self._within.remove(id(cast("object", thing)))
        elif id(thing) not in self._seen:
            self._seen.add(id(thing))
            yield from self._code(thing)

    def _value(self, thing: Any, attributes: list[str]) -> Iterator[str]:
        """A thing that is looked up, or what is read of it, where it is an object that only holds values."""
        if not isinstance(thing, (ModuleType, type, FunctionType)):
            for name in attributes:
                values: dict[str, Any] = getattr(cast("object", thing), "__dict__", {})
                if name not in values:
                    break
                thing = values[name]
        yield from self.parts(thing)

    def _items(self, container: Any) -> Iterator[str]:
        yield f"{type(container).__name__} of {len(container)}"
        if isinstance(container, (set, frozenset)):
            items: list[list[str]] = sorted(list(self.parts(item)) for item in cast("set[Any]", container))
            yield from (part for item in items for part in item)
            return
        if isinstance(container, dict):
            container = cast("dict[Any, Any]", container).items()
        for item in islice(container, _MOST_ITEMS):
            yield from self.parts(item)

    def _code(self, thing: Any) -> Iterator[str]:
        if isinstance(thing, partial):
            held = cast("partial[Any]", thing)
            yield from self.parts((held.func, held.args, held.keywords))
        elif isinstance(thing, (MethodType, staticmethod, classmethod)):
            yield from self.parts(cast(Any, thing).__func__)
        elif isinstance(thing, property):
            yield from self.parts((thing.fget, thing.fset, thing.fdel))
        elif isinstance(thing, CodeType):
            yield thing.co_code.hex()
            yield from self.parts((thing.co_names, thing.co_consts))
        elif getattr(thing, "__module__", None) != self._module:
            return
        elif isinstance(thing, FunctionType):
            yield from self.parts((thing.__code__, thing.__defaults__, thing.__kwdefaults__))
            held = {**thing.__globals__, **inspect.getclosurevars(thing).nonlocals}
            for name, *attributes in _read_by(thing.__code__):
                yield from self._value(held.get(name), attributes)
        elif isinstance(thing, type):
            yield from self.parts(thing.__bases__)
            for name, value in sorted(vars(thing).items()):
                if name not in _NOT_CODE:
                    yield name
                    yield from self.parts(value)
        elif hasattr(thing, "__wrapped__"):  # functools.cache and its like
            yield from self.parts(thing.__wrapped__)


def _read_by(code: CodeType) -> list[list[str]]:
    """What a function's code looks up outside, and that of the functions inside it: ``args.model.depth``."""
    found: list[list[str]] = []
    follows = False
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
            found.append([instruction.argval])
            follows = True
        elif follows and instruction.opname == "LOAD_ATTR":
            found[-1].append(instruction.argval)
        elif instruction.opname != "CACHE":
            follows = False
    return found + [path for const in code.co_consts if isinstance(const, CodeType) for path in _read_by(const)]
