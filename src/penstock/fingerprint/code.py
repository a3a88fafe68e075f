"""A fingerprint of ``make_loader``, so that an edited one is told from that of the running feed."""

from __future__ import annotations

import hashlib
import inspect
import os
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import msgspec

from penstock.fingerprint.bytecode import defaults_of, read_by
from penstock.fingerprint.data import DataFingerprint, fingerprint_of_files, may_name_data

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_CONTAINERS = (tuple, list, set, frozenset, dict)
_MOST_ITEMS = 1000
MOST_PARTS = 64
_NAME_LENGTH = 80
MODULE = "the module "
NOT_CODE = ("__doc__", "__module__", "__firstlineno__", "__static_attributes__", "__dict__", "__weakref__")
SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = 60


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Something that a function uses: its digest and, if it is a value, that as shortened text."""

    digest: str
    shown: str = ""


class Fingerprint(msgspec.Struct, frozen=True):
    """A fingerprint of a function.

    Attributes:
        digest: The version of Python, and a digest of all parts.
        parts: The first parts, by name: ``"the code of make"``, ``"args.data"``.
        data: Versions of the files that its values name, except Python's own. They only lead to warnings: a
            function may write what it reads.
    """

    digest: str
    parts: dict[str, Part] = {}
    data: DataFingerprint = DataFingerprint()

    @property
    def modules(self) -> list[str]:
        """The user's modules that count."""
        return [name.removeprefix(MODULE) for name in self.parts if name.startswith(MODULE)]

    @property
    def digests(self) -> dict[str, str]:
        """Digests by name, without the values, for a file that others may read."""
        python, whole = self.digest.split()
        digests = {
            "the version of Python": python,
            **{name: f"#{part.digest}" for name, part in self.parts.items()},
        }
        return digests if len(self.parts) < MOST_PARTS else {**digests, "all that it uses": f"#{whole}"}


def fingerprint_of(make_loader: Callable[[], Any]) -> Fingerprint:
    """Compute a fingerprint of a function's code and of what it uses from its own module.

    That is: functions and classes of that module, and numbers, strings and
    paths, whether constants, globals, defaults, held by a closure or a partial,
    or attributes of an object that the code reads (``args.data``, or
    ``self.data`` in a method); of a long list its length and first thousand
    items. What the function imports, the rest of objects that it holds, and
    comments do not count. A script's function has one fingerprint in the script
    and in processes that ``multiprocessing`` spawns from it.
    Fingerprints from different versions of Python cannot be compared, so each
    begins with its version.
    """
    walk = _Walk(_modules_of(make_loader))
    texts: dict[str, list[str]] = {}
    whole: list[str] = []
    for name, text in walk.parts("make_loader", make_loader):
        texts.setdefault(name[:_NAME_LENGTH], []).append(text)
        whole.append(text)
    parts = {
        name: Part(_digest(of, 8), walk.shown.get(name, "")) for name, of in islice(texts.items(), MOST_PARTS)
    }
    data = fingerprint_of_files(sorted(walk.paths))
    return Fingerprint(f"{sys.version_info.major}.{sys.version_info.minor} {_digest(whole, 16)}", parts, data)


def same_fingerprint(one: Fingerprint, other: Fingerprint) -> bool:
    """Whether two fingerprints may be of one function."""
    (python, digest), (other_python, other_digest) = one.digest.split(), other.digest.split()
    return python != other_python or digest == other_digest


def fingerprint_difference(feeds: Fingerprint, yours: Fingerprint) -> str:
    """Say what differs between two fingerprints, as far as their parts tell."""
    differ: list[str] = []
    for name, one in feeds.parts.items():
        other = yours.parts.get(name)
        if other is not None and one.digest != other.digest:
            told = one.shown and other.shown and one.shown != other.shown
            differ.append(f"{name} is {one.shown} there and {other.shown} in yours" if told else f"{name} differs")
    found = [_first(differ)] if differ else []
    theirs, mine = _only_in(feeds, yours), _only_in(yours, feeds)
    if theirs:
        found.append(f"the feed's uses {_first(theirs)}, which yours does not")
    if mine:
        found.append(f"yours uses {_first(mine)}" + ("" if theirs else ", which the feed's does not"))
    return "; ".join(found) or "its code, or a value that it uses, differs"


def _only_in(one: Fingerprint, other: Fingerprint) -> list[str]:
    """List what one function uses and the other does not, classes and functions as wholes; versions last."""
    if len(other.parts) >= MOST_PARTS:  # there are more parts than those
        return []
    known = {_whole(name) for name in other.parts}
    wholes = {_whole(name) for name in one.parts if "." not in name or name.startswith("the ")} - known
    only = [name for name in one.parts if name not in other.parts]
    named = dict.fromkeys(_whole(name) if _whole(name) in wholes else name for name in only)
    return sorted(named, key=lambda name: name.startswith("the version of "))


def _whole(part: str) -> str:
    """Name the class or function of a part: ``Photos`` for ``the code of Photos.__init__``."""
    name = part.removeprefix("the code of ").removeprefix("the bases of ").rpartition("<locals>.")[2]
    return name.partition(".")[0].partition("(")[0]


def _first(told: list[str]) -> str:
    more = f" and {len(told) - 3} more" if len(told) > 3 else ""
    return ", ".join(told[:3]) + more


def _digest(texts: Iterable[str], length: int) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode(errors="surrogatepass") + b"\0")
    return digest.hexdigest()[:length]


def _modules_of(thing: Any) -> set[str | None]:
    while isinstance(thing, partial):
        thing = cast("partial[Any]", thing).func
    of_object = {getattr(thing.__self__, "__module__", None)} if isinstance(thing, MethodType) else set[None]()
    return {getattr(thing, "__module__", None), *of_object}


class _Walk:
    """Walks a thing in a fixed order, and yields the texts that identify it, each with the name of its part.

    Args:
        modules: Modules whose code counts.

    Attributes:
        shown: Values by name, shortened.
        paths: Values that may be a file's path.
    """

    def __init__(self, modules: set[str | None]) -> None:
        self.shown: dict[str, str] = {}
        self.paths: set[str] = set()
        self._modules = modules
        self._seen: set[int] = set()  # ids of code, which lives as long as what is walked
        self._bound: set[tuple[int, int]] = set()  # ids of methods and their objects
        self._within: set[int] = set()  # ids of containers

    def parts(self, name: str, thing: Any) -> Iterator[tuple[str, str]]:
        if type(thing) in _PLAIN or isinstance(thing, PurePath):
            yield name, repr(thing)
            if may_name_data(thing):
                self.paths.add(str(thing))
        elif isinstance(thing, _CONTAINERS):
            if id(cast("object", thing)) not in self._within:
                self._within.add(id(cast("object", thing)))
                yield from self._items(name, thing)
                self._within.remove(id(cast("object", thing)))
        elif id(thing) not in self._seen:
            self._seen.add(id(thing))
            yield from self._code(name, thing)

    def _named(self, name: str, thing: Any) -> Iterator[tuple[str, str]]:
        if isinstance(thing, (*_PLAIN, *_CONTAINERS, PurePath)):
            self.shown[name] = SHORT.repr(thing)[:80]
        yield from self.parts(name, thing)

    def _value(self, path: list[str], thing: Any) -> Iterator[tuple[str, str]]:
        """Yield the parts of a thing that code looks up or, if it is an object, of the attributes read."""
        name, *attributes = path
        if not isinstance(thing, (ModuleType, type, FunctionType)):
            for attribute in attributes:
                values: dict[str, Any] = getattr(cast("object", thing), "__dict__", {})
                if attribute not in values:
                    yield from self._of_class(thing, attribute)
                    break
                thing = values[attribute]
                name += f".{attribute}"
        yield from self._named(name, thing)

    def _of_class(self, thing: Any, attribute: str) -> Iterator[tuple[str, str]]:
        """Yield the parts of an attribute that an object has from its class, if the class counts."""
        kind = cast("type[Any]", type(thing))
        if kind.__module__ in self._modules:
            found = inspect.getattr_static(kind, attribute, None)
            found = found.fget if isinstance(found, property) else found
            if isinstance(found, FunctionType):
                yield from self._method(found, thing)
            else:
                yield from self._named(f"{kind.__qualname__}.{attribute}", found)

    def _method(self, function: Any, held: Any) -> Iterator[tuple[str, str]]:
        """Yield the parts of a method's code, and of what it reads of its object."""
        if (id(function), id(held)) in self._bound:
            return
        self._bound.add((id(function), id(held)))
        yield from self.parts(getattr(function, "__qualname__", "make_loader"), function)
        ours = isinstance(function, FunctionType) and function.__module__ in self._modules
        if ours and function.__code__.co_argcount:
            for path in read_by(function.__code__, function.__code__.co_varnames[0]):
                yield from self._value(path, held)

    def _items(self, name: str, container: Any) -> Iterator[tuple[str, str]]:
        yield name, f"{type(container).__name__} of {len(container)}"
        if isinstance(container, (set, frozenset)):
            items = sorted([text for _, text in self.parts(name, item)] for item in cast("set[Any]", container))
            yield from ((name, text) for item in items for text in item)
            return
        if isinstance(container, dict):
            container = cast("dict[Any, Any]", container).items()
        for item in islice(container, _MOST_ITEMS):
            yield from self.parts(name, item)

    def _code(self, name: str, thing: Any) -> Iterator[tuple[str, str]]:
        if isinstance(thing, partial):
            held = cast("partial[Any]", thing)
            yield from self.parts(name, held.func)
            function = getattr(held.func, "__qualname__", name)
            given = {f"argument {i} of {function}": value for i, value in enumerate(held.args, 1)}
            yield from self._arguments(name, given)
            yield from self._arguments(name, {f"{function}({key}=)": v for key, v in held.keywords.items()})
        elif isinstance(thing, MethodType):
            yield from self._method(thing.__func__, thing.__self__)
        elif isinstance(thing, (staticmethod, classmethod)):
            yield from self.parts(name, cast(Any, thing).__func__)
        elif isinstance(thing, property):
            yield from self.parts(name, (thing.fget, thing.fset, thing.fdel))
        elif isinstance(thing, CodeType):
            yield name, thing.co_code.hex()
            yield from self.parts(name, (thing.co_names, thing.co_consts))
        elif getattr(thing, "__module__", None) not in self._modules:
            return
        elif isinstance(thing, FunctionType):
            yield from self._function(thing)
        elif isinstance(thing, type):
            yield from self.parts(f"the bases of {thing.__qualname__}", thing.__bases__)
            for attribute, value in sorted(vars(thing).items()):
                if attribute not in NOT_CODE:
                    yield f"{thing.__qualname__}.{attribute}", attribute
                    yield from self._named(f"{thing.__qualname__}.{attribute}", value)
        elif hasattr(thing, "__wrapped__"):  # functools.cache and similar
            yield from self.parts(name, thing.__wrapped__)
        elif callable(thing):
            yield from self._of_class(thing, "__call__")

    def _function(self, function: FunctionType) -> Iterator[tuple[str, str]]:
        name, code = function.__qualname__, function.__code__
        yield from self.parts(f"the code of {name}", code)
        given = defaults_of(function)
        yield from self._arguments(f"the code of {name}", {f"{name}({key}=)": v for key, v in given.items()})
        held = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
        if held["__name__"] == "__mp_main__":
            held["__name__"] = "__main__"
        if isinstance(file := held.get("__file__"), str):  # a script's is the path as it was given
            held["__file__"] = os.path.normpath(file)
        for path in read_by(code):
            yield from self._value(path, held.get(path[0]))

    def _arguments(self, name: str, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
        yield name, f"{len(given)} given"
        for argument, value in given.items():
            yield argument, argument
            yield from self._named(argument, value)
