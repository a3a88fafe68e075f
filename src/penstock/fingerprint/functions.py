"""A fingerprint of ``make_loader``, so that an edited one differs from that of the running feed."""

# What is walked may be anything.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from penstock.fingerprint.code import read_by
from penstock.fingerprint.comparison import Fingerprint
from penstock.fingerprint.content import joined
from penstock.fingerprint.file_versions import fingerprint_of_files
from penstock.fingerprint.objects import WRAPPERS, Objects


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
