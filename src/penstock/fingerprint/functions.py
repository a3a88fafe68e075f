"""A fingerprint of ``make_loader``, so that an edited one differs from that of the running feed."""

# What is walked may be anything.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import inspect
import os
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import msgspec

from penstock.basics.terminal import listed
from penstock.fingerprint.code import read_by
from penstock.fingerprint.content import joined
from penstock.fingerprint.files import DataFingerprint, fingerprint_of_files
from penstock.fingerprint.objects import WRAPPERS, Objects

MOST_PARTS = 64
MODULE = "the module "
NOT_CODE = ("__doc__", "__module__", "__firstlineno__", "__static_attributes__", "__dict__", "__weakref__")
SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = 60


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Something that a function uses: its digest and, if it is a value, that as shortened text."""

    digest: str
    shown: str = ""


class Fingerprint(msgspec.Struct, frozen=True):
    """A fingerprint of a function."""

    digest: str  # the version of Python, and a digest of all parts
    parts: dict[str, Part] = {}  # the first parts, by name: ``"the code of make"``, ``"args.data"``
    data: DataFingerprint = DataFingerprint()
    """Versions of the files that its values name, except Python's own. They only lead to warnings: a function may
    write what it reads."""
    built_ins: tuple[str, ...] = ()  # names of what the process has put into ``builtins``, and the code reads

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


def same_fingerprint(one: Fingerprint, other: Fingerprint) -> bool:
    """Whether two fingerprints may be of one function."""
    (python, digest), (other_python, other_digest) = one.digest.split(), other.digest.split()
    return python != other_python or digest == other_digest


def fingerprint_difference(feeds: Fingerprint, yours: Fingerprint) -> str:
    """Return what differs between two fingerprints, as far as their parts show it."""
    differ: list[str] = []
    for name, one in feeds.parts.items():
        other = yours.parts.get(name)
        if other is not None and one.digest != other.digest:
            seen = one.shown and other.shown and one.shown != other.shown
            differ.append(f"{name} is {one.shown} there and {other.shown} in yours" if seen else f"{name} differs")
    found = [listed(differ)] if differ else []
    theirs, mine = _only_in(feeds, yours), _only_in(yours, feeds)
    if theirs:
        found.append(f"the feed's uses {listed(theirs)}, which yours does not")
    if mine:
        found.append(f"yours uses {listed(mine)}" + ("" if theirs else ", which the feed's does not"))
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


def fingerprint_of(make_loader: Callable[[], Any]) -> Fingerprint:
    """Compute a fingerprint of a function's code and of what it uses from its own module.

    That is: functions and classes of that module, and numbers, strings and
    paths, whether constants, globals, defaults, held by a closure or a partial,
    or attributes of an object that the code reads (``args.data``, or
    ``self.data`` in a method). What the function imports, the rest of objects
    that it holds, and comments do not count. A script's function has one
    fingerprint in the script and in processes that ``multiprocessing`` spawns
    from it. Fingerprints from different versions of Python cannot be compared,
    so each begins with its version.
    """
    walk = _Function(make_loader)
    digest = walk.digests({"make_loader": make_loader}).hex()
    files = fingerprint_of_files(sorted(walk.paths))
    return Fingerprint(f"{sys.version_info.major}.{sys.version_info.minor} {digest}", walk.parts(), files)


class _Function(Objects):
    """Digests a function and what it uses of its own module; of objects, only what that code reads of them."""

    def __init__(self, make_loader: Any) -> None:
        super().__init__()
        self.strict = False
        while isinstance(make_loader, partial):
            make_loader = make_loader.func
        held = make_loader.__self__ if isinstance(make_loader, MethodType) else make_loader
        self._modules = {getattr(each, "__module__", None) for each in (make_loader, held)}
        self._bound: set[tuple[int, int]] = set()  # ids of methods and their objects, which live as long as this

    def reads(self, module: str) -> bool:
        return module in self._modules

    def owner(self, module: str) -> str:
        return ""

    def named_by_code(self) -> Iterable[bytes]:
        return self.named_built_ins()

    def other(self, path: str, thing: Any) -> bytes:
        if isinstance(thing, (tuple, list, dict)):
            return self.container(path, thing)
        if isinstance(thing, (set, frozenset)):
            return self.unordered(path, thing)
        if isinstance(thing, partial):
            name = getattr(thing.func, "__qualname__", path)
            given = {f"argument {i} of {name}": value for i, value in enumerate(thing.args, 1)}
            given |= {f"{name}({key}=)": value for key, value in thing.keywords.items()}
            held = (joined(each, self.digest(each, value)) for each, value in given.items())
            return joined("partial", self.digest(path, thing.func), *held)
        if isinstance(thing, MethodType):
            return self._method(path, thing.__func__, thing.__self__)
        if type(thing) in WRAPPERS:
            return super().other(path, thing)
        if getattr(thing, "__module__", None) not in self._modules:
            return b""
        if isinstance(thing, (type, FunctionType)):
            return super().other(path, thing)
        if hasattr(thing, "__wrapped__"):
            return self.digest(path, thing.__wrapped__)
        return self._of_class(thing, "__call__") if callable(thing) else b""

    def value(self, names: list[str], held: Mapping[str, Any]) -> bytes:
        name, value = names[0], held[names[0]]
        if name == "__name__":
            return super().value(names, held)
        if name == "__file__" and isinstance(value, str):  # a script's is the path as it was given
            return joined(os.path.normpath(value))
        digests: list[bytes] = []
        for attribute in () if isinstance(value, (ModuleType, type, FunctionType)) else names[1:]:
            values = getattr(value, "__dict__", {})
            if attribute not in values:
                digests.append(self._of_class(value, attribute))
                break
            name, value = f"{name}.{attribute}", values[attribute]
        return joined(name, *digests, self.digest(name, value))

    def code(self, code: CodeType) -> bytes:
        for const in code.co_consts:
            self.note_paths((const,))
        return super().code(code)

    def _of_class(self, thing: Any, attribute: str) -> bytes:
        """Digest an attribute that an object has from its class, if the class counts."""
        kind = type(thing)
        if kind.__module__ not in self._modules:
            return b""
        found = inspect.getattr_static(kind, attribute, None)
        found = found.fget if isinstance(found, property) else found
        name = f"{kind.__qualname__}.{attribute}"
        return self._method(name, found, thing) if isinstance(found, FunctionType) else self.digest(name, found)

    def _method(self, path: str, function: Any, held: Any) -> bytes:
        """Digest a method's code, and what it reads of its object."""
        if (id(function), id(held)) in self._bound:
            return b""
        self._bound.add((id(function), id(held)))
        digests = [self.digest(path, function)]
        ours = isinstance(function, FunctionType) and function.__module__ in self._modules
        if ours and function.__code__.co_argcount:
            own = read_by(function.__code__, function.__code__.co_varnames[0])
            digests += [self.value(names, {names[0]: held}) for names in own]
        return joined(*digests)
