"""A fingerprint of a data set, its collation and its sampler: of all that they hold, and of the code behind it."""

# What is walked may be anything, and cloudpickle has no type stubs.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

import io
import json
import os
import random
import sys
import types
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache, partial
from importlib.util import resolve_name
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import cloudpickle
import numpy as np

from penstock.errors import Untravelled
from penstock.fingerprint.code import (
    MAIN,
    closure_of,
    defaults_of,
    importable,
    imported_by,
    is_or_inherits,
    is_users,
    name_of,
    not_counted,
    read_by,
)
from penstock.fingerprint.comparison import NOT_CODE, SHORT, Fingerprint
from penstock.fingerprint.content import (
    NotPlain,
    array_of,
    digest_of_array,
    digest_of_container,
    digest_of_tensor,
    joined,
    place_in_file,
    sample_of,
    state_of,
)
from penstock.fingerprint.file_versions import fingerprint_of_files
from penstock.fingerprint.reach import is_replacement, looks_of
from penstock.fingerprint.walk import NAMED_ITEMS, Walk, is_plain

_RANDOM = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
WRAPPERS: dict[type, tuple[str, ...]] = {
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    cached_property: ("func",),
    property: ("fget", "fset", "fdel"),
    MethodType: ("__self__", "__func__"),
    type(lru_cache(id)): ("__wrapped__",),
}
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_OF_CLASSES = "__annotations__ __annotate_func__ __annotations_cache__ __orig_bases__ __parameters__ __slotnames__"
_NOT_CODE = {*NOT_CODE, *_OF_CLASSES.split(), "_abc_impl"}
_QUICK_ITEMS = 100_000  # of longer containers, and of larger arrays, not all is read again in each epoch
QUICK_BYTES = 64 << 20
_SMALL_BYTES = 1 << 20


def fingerprint_of_objects(things: Mapping[str, Any]) -> Fingerprint:
    """Compute a fingerprint of objects: of all that they hold, and of the code of their classes.

    Two processes get one fingerprint for objects of equal values: addresses, hash seeds and the order of sets do
    not matter, the order of dicts does. Code of the script and of modules outside of installed packages counts,
    with the globals that it reads; of an installed package the version counts. A memory-mapped array counts by its
    file's path, size and time, a data set of Hugging Face by its own fingerprint. Random number generators do not
    count, but in what has a ``set_epoch``, which may seed them; nor do caches of ``functools``, and what a call
    sets in a tokenizer. The names in ``things``, such as ``"dataset"``, begin the names of parts.
    """
    walk = Objects()
    walk.leaf("the working directory", joined(os.getcwd()), os.getcwd())  # paths may be relative
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    whole = joined(python, os.getcwd(), walk.digests(things))
    files = fingerprint_of_files(sorted(walk.paths))
    return Fingerprint(f"{python} {whole.hex()}", walk.parts(), files, tuple(sorted(walk.reach.built_ins())))


def small_state(things: Mapping[str, Any], without: Iterable[Any] = ()) -> str:
    """Digest what is quickly read of objects, to see in one process whether they have changed.

    Attributes, containers of up to 100,000 items and arrays and tensors count by value:
    64 MiB of those of up to 1 MiB each, and 64 MiB of larger ones. Of further arrays 64
    pieces of 4 KiB count, so that a change between them is missed, and of longer
    containers identity and length; within what has a ``set_epoch``, all. Nothing counts of those in ``without``.
    """
    return Objects(quick=True, without=without).digests(things).hex()


class Objects(Walk):
    """Digests objects, and the code behind them."""

    def __init__(self, *, quick: bool = False, without: Iterable[Any] = ()) -> None:
        super().__init__(quick=quick, without=without)
        self._room = [QUICK_BYTES, QUICK_BYTES]  # what may still be read of large arrays, and of small ones

    def reads(self, module: str) -> bool:
        """Whether the code of a module is read: the user's; of others, the version counts."""
        return is_users(module)

    def other(self, path: str, thing: Any) -> bytes:
        kind = type(thing)
        if kind in (tuple, list, dict):
            return self.container(path, thing)
        if kind in (set, frozenset):
            return self.unordered(path, thing)
        if isinstance(thing, type):
            return self._class(path, thing)
        if isinstance(thing, FunctionType):
            return self._function(path, thing)
        if isinstance(thing, ModuleType):
            return self._module(thing)
        if isinstance(thing, BuiltinFunctionType) and importable(thing):
            return joined("function", self.owner(thing.__module__), thing.__qualname__)
        if kind is type(os.environ):  # or what became of it on its way
            self.reach.looks_at_variables = True
            return joined("environ")
        if kind is bytearray:
            return joined("bytearray", bytes(cast("bytearray", thing)))
        if kind in WRAPPERS:
            return joined(kind.__name__, *(self.digest(path, getattr(thing, name)) for name in WRAPPERS[kind]))
        if isinstance(thing, _RANDOM) or (self.torch and isinstance(thing, self.torch.Generator)):
            return joined("random", str(kind), self.unnamed(path, None if self.partly(thing) else state_of(thing)))
        if isinstance(thing, np.ndarray):
            return self.array(path, thing)
        if self.torch and isinstance(thing, self.torch.Tensor):
            return self._tensor(path, thing)
        return self._object(path, thing)

    def container(self, path: str, thing: Any) -> bytes:
        kind, count = type(thing).__name__, len(thing)
        if count > NAMED_ITEMS:
            if self.quick and count > _QUICK_ITEMS and self.partly(thing):
                return joined(kind, str(id(thing)), str(count))
            return self.leaf(path, joined(kind, self._long(path, thing)), f"{kind} of {count:,}")
        if isinstance(thing, dict):
            keys = (
                joined(self.unnamed(path, k), self.digest(f"{path}[{SHORT.repr(k)}]", thing[k]))
                for k in self.counting(thing)
            )
            return joined(kind, *keys)
        return joined(kind, *(self.digest(f"{path}[{i}]", item) for i, item in enumerate(thing)))

    def _long(self, path: str, thing: Any) -> bytes:
        if not self.quick:
            self.note_paths(thing)
        try:
            return digest_of_container(thing, partial(self.unnamed, path))
        except NotPlain:
            items: Iterable[Any] = thing.items() if isinstance(thing, dict) else thing
            return joined(*(self.unnamed(path, item) for item in items))

    def unordered(self, path: str, thing: Any) -> bytes:
        kind, count = type(thing).__name__, len(thing)
        if self.quick and count > _QUICK_ITEMS and self.partly(thing):
            return joined(kind, str(id(thing)), str(count))
        if set(map(type, thing)) <= {str}:
            digests = [digest_of_container(sorted(thing), joined)]
        else:
            digests = [self.as_if_first(path, item) for item in thing]
        shown = SHORT.repr(thing)[:80] if count <= NAMED_ITEMS else f"{kind} of {count:,}"
        return self.leaf(path, joined(kind, *sorted(digests)), shown)

    def array(self, path: str, thing: Any) -> bytes:
        if self.quick and not self._has_room(thing) and self.partly(thing):
            return joined("array", sample_of(thing))
        if thing.dtype.hasobject or thing.dtype.kind == "T":
            content = joined(str(thing.dtype), str(thing.shape), self.unnamed(path, thing.tolist()))
        else:
            content = digest_of_array(thing)
        if type(thing) not in (np.ndarray, np.memmap):
            content = joined(content, self.digest(path, type(thing)), self.attributes(path, vars(thing)))
        return self.leaf(path, content, "" if self.nameless else f"{thing.dtype} {thing.shape}")

    def _has_room(self, array: Any) -> bool:
        """Whether an array is still to be read as a whole; small ones, such as labels, have room of their own."""
        small = array.nbytes <= _SMALL_BYTES
        if array.nbytes > self._room[small] and not place_in_file(array):
            return False
        self._room[small] -= 0 if place_in_file(array) else array.nbytes
        return True

    def _tensor(self, path: str, thing: Any) -> bytes:
        if self.quick:
            known = joined("tensor", str(id(thing)), str(thing.shape), str(thing.is_inference() or thing._version))
            plain = thing.device.type == "cpu" and thing.layout is self.torch.strided and not thing.is_quantized
            return joined(known, self.array(path, array_of(thing))) if plain else known
        if thing.device.type != "cpu":
            raise Untravelled(f"{path} is a tensor on {thing.device}: data that a feeder reads lie on the host")
        if thing.layout is not self.torch.strided or thing.is_quantized:
            return self._object(path, thing)
        content = digest_of_tensor(thing)
        if type(thing) is not self.torch.Tensor:
            content = joined(content, self.digest(path, type(thing)), self.attributes(path, vars(thing)))
        return self.leaf(path, content, "" if self.nameless else f"{thing.dtype} {tuple(thing.shape)}")

    def _object(self, path: str, thing: Any) -> bytes:
        kind = type(thing)
        self.leaf(path, joined(name_of(kind)), name_of(kind))
        if isinstance(thing, partial):
            given = {**{str(i): value for i, value in enumerate(thing.args)}, **thing.keywords}
            return joined("partial", self.digest(path, thing.func), self.attributes(path, given))
        if is_or_inherits(kind, "datasets.arrow_dataset.Dataset"):
            self.paths.update(file["filename"] for file in thing.cache_files)
            formatted = self.digest(f"{path}.format", (thing._format_type, thing._format_kwargs))
            named = thing._fingerprint
            return joined(self.leaf(f"{path}._fingerprint", joined(named), named), formatted)
        if self.quick:
            return self._quickly(path, thing)
        reduce: Any = cloudpickle.CloudPickler.dispatch_table.get(kind)
        if reduce is None or kind is io.TextIOWrapper:  # cloudpickle would send what is in the file
            reduced: Any = thing.__reduce_ex__(4)
        else:
            reduced = reduce(thing)
        if isinstance(reduced, str):  # it is found again by that name, as it is there
            own = vars(thing) if is_users(kind.__module__) and hasattr(thing, "__dict__") else {}
            with self._reading():
                return joined(self.digest(path, kind), reduced, self.attributes(path, own, not_counted(kind)))
        parts: list[Any] = [*reduced, None, None, None]
        function, given, items, pairs = parts[0], parts[1], parts[3], parts[4]
        state: Any = {} if parts[2] is None else parts[2]
        if isinstance(state, tuple) and [*map(type, state)] in ([dict, dict], [type(None), dict]):  # with slots
            state = {**(state[0] or {}), **state[1]}
        digests = [self.digest(path, kind), self.digest(path, function)]
        digests += [self.digest(f"{path}({i})", item) for i, item in enumerate(given) if item is not kind]
        if isinstance(state, dict) and all(isinstance(name, str) for name in state):
            digests.append(self.attributes(path, state, not_counted(kind)))
        elif is_or_inherits(kind, "tokenizers.Tokenizer") and path.endswith("._tokenizer"):  # of transformers
            set_by_calls: Any = {"truncation": None, "padding": None}
            digests.append(self.digest(path, {**json.loads(bytes(state)), **set_by_calls}))
        else:
            digests.append(self.digest(path, state))
        held = [list(items) if items else None, dict(pairs) if pairs else None]
        return joined(*digests, *(self.digest(path, content) for content in held if content is not None))

    def _quickly(self, path: str, thing: Any) -> bytes:
        """Digest memory, or an object's attributes and few items; what has none of these by its identity."""
        with suppress(TypeError, ValueError):
            return joined(name_of(type(thing)), self.array(path, np.frombuffer(memoryview(thing), np.uint8)))
        state = dict(getattr(thing, "__dict__", {}))
        for names in (vars(one).get("__slots__", ()) for one in type(thing).__mro__):
            for name in [names] if isinstance(names, str) else names:
                state[name] = getattr(thing, name, None)
        digests = [self.digest(path, type(thing)), self.attributes(path, state, not_counted(type(thing)))]
        holds = isinstance(thing, (dict, list, tuple, deque))
        if holds and (len(thing) <= _QUICK_ITEMS or not self.partly(thing)):
            digests.append(self.digest(path, list(thing.items() if isinstance(thing, dict) else thing)))
        elif holds or not state:
            digests.append(joined(str(id(thing))))
        return joined(*digests)

    def _module(self, module: ModuleType) -> bytes:
        users = is_users(module.__name__)
        if users and module.__name__ not in MAIN:
            self.reach.modules[module.__name__] = module
        elif not users:
            self.reach.installed[id(module)] = module
        return joined("module", self.owner(module.__name__))

    def named_by_code(self) -> Iterable[bytes]:
        with self._reading():
            done: set[str] = set()
            while left := sorted(self.reach.modules.keys() - done):
                for name in left:
                    done.add(name)
                    self.owner(name)
                    held = vars(module := self.reach.modules[name])
                    named = [(f"{name}.{each}", held[each]) for each in self.reach.attributes(module)]
                    yield joined(name, *(joined(path, self.digest(path, value)) for path, value in named))
            yield from self.named_built_ins()
            for path, value in self.reach.of_process().items():
                yield self.digest(path, value)
            for name, function in {} if self.quick else self.reach.replacements().items():
                yield joined(name, self.leaf(name, self.digest(name, function)))

    def _class(self, path: str, kind: type) -> bytes:
        module, name = kind.__module__, name_of(kind)
        if not self.reads(module) and (importable(kind) or "<locals>" not in kind.__qualname__):
            self.reach.installed[id(kind)] = kind
            return joined("class", self.owner(module), name)
        with self._reading(kind):
            kinds = (*kind.__bases__, type(kind)) if self.reads(type(kind).__module__) else kind.__bases__
            digests = [self.digest(path, one) for one in kinds]
            for attribute, value in sorted(vars(kind).items()):
                if attribute not in _NOT_CODE and not isinstance(value, _DESCRIPTORS):
                    digests.append(joined(attribute, self.digest(f"{name}.{attribute}", value)))
        return joined("class", self.owner(module), name, *digests)

    def _function(self, path: str, function: FunctionType) -> bytes:
        globals_, name, code = function.__globals__, function.__qualname__, function.__code__
        module = globals_.get("__name__", "")
        users = self.reads(module)
        if not users and importable(function):
            self.reach.installed[id(function)] = function
            wraps = self.reads(function.__module__)  # a decorator of a library's, round a function of the user's
            within = [function.__kwdefaults__, *closure_of(function).values()] if wraps else []
            with self._reading():
                held = [self.digest(name, each) for each in within if _is_code_or_plain(each)]
            return joined("function", self.owner(module), name, *held)
        digests = [self.leaf(f"the code of {name}", self.code(code))]
        given = defaults_of(function)
        digests += [joined(key, self.digest(f"{name}({key}=)", given[key])) for key in self.counting(given)]
        digests.append(self.attributes(name, function.__dict__))
        held = closure_of(function)
        if users:
            self.reach.add(function)
        with self._reading(function):
            for names in read_by(code):
                if names[0] in held or (users and names[0] in globals_):
                    digests.append(self.value(names, held if names[0] in held else globals_))
            if users:
                digests += self._looked_up_when_run(function)
        return joined("function", self.owner(module), name, *digests)

    def _looked_up_when_run(self, function: FunctionType) -> Iterator[bytes]:
        """Digest what code reads of imported modules of the user, and of globals that it names by text."""
        globals_, code = function.__globals__, function.__code__
        package = globals_.get("__package__")
        for module, names in imported_by(code):
            name = resolve_name(module, package) if package or not module.startswith(".") else module
            if name in sys.modules and self.reads(name):
                self.owner(name)
                yield self.value(names, {names[0]: sys.modules[name]})
        looks = looks_of(code)
        if not looks.names.isdisjoint({"globals", "eval", "exec"}):
            for word in sorted(looks.words & globals_.keys()):
                yield self.value([word], globals_)

    def value(self, names: list[str], held: Mapping[str, Any]) -> bytes:
        """Digest what code looks up: an object, or that attribute or item of it which the code reads."""
        if names[0] == "__name__":
            return joined("__main__" if held["__name__"] in MAIN else held["__name__"])
        name, value = names[0], held[names[0]]
        for i, attribute in enumerate(names[1:], 1):
            known: Any = {} if isinstance(value, (type, FunctionType)) else getattr(value, "__dict__", {})
            if type(value) is dict and attribute[1:] in value:
                known = {f"[{attribute[1:]}": value[attribute[1:]]}
            if isinstance(value, ModuleType) and not is_users(value.__name__):
                return joined(name, self._of_library(name, value, names[i:]))
            if attribute not in known:
                break
            name, value = f"{name}.{attribute}", known[attribute]
        return joined(name, *(self.digest(each, value) for each in self.counting({name: value})))

    def _of_library(self, name: str, module: ModuleType, rest: list[str]) -> bytes:
        """Digest an installed module, and what code reads of it if that is plain, or a function of the user's."""
        digests, value = [self.digest(name, module)], cast("Any", module)
        for attribute in rest:
            if not isinstance(value, ModuleType) or attribute not in vars(value):
                break
            name, module, value = f"{name}.{attribute}", value, vars(value)[attribute]
            if isinstance(value, ModuleType):
                digests.append(self.digest(name, value))
        top = module.__name__.partition(".")[0]
        setting = is_plain(value) and top not in sys.stdlib_module_names
        if setting or is_replacement(value, module.__name__) or isinstance(value, type):
            digest = self.digest(name, value)
            digests.append(digest if setting or isinstance(value, type) else self.leaf(name, digest))
        elif isinstance(value, FunctionType):
            self.reach.installed[id(value)] = value
        return joined(*digests)

    def code(self, code: CodeType) -> bytes:
        consts = [self.code(c) if isinstance(c, CodeType) else self.unnamed("", c) for c in code.co_consts]
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        counts = f"{code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount} {code.co_flags}"
        words = joined(counts, *code.co_names, "", *arguments)
        return joined(code.co_code, code.co_exceptiontable, words, *consts)

    @contextmanager
    def _reading(self, thing: Any = None) -> Generator[None]:
        """Let globals be what they are where another process imports the code, and so makes them anew."""
        strict = self.strict
        self.strict = strict and thing is not None and (thing.__module__ in MAIN or not importable(thing))
        try:
            yield
        finally:
            self.strict = strict


def _is_code_or_plain(value: Any) -> bool:
    if type(value) is dict:
        return all(isinstance(each, (FunctionType, type)) for each in value.values())
    return isinstance(value, (FunctionType, type, partial)) or is_plain(value)
