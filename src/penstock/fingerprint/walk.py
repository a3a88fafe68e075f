"""Walks things in a fixed order, each once, and digests them by name."""

# What is walked may be anything.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import PurePath
from typing import Any

import numpy as np

from penstock.basics.tracebacks import raised
from penstock.errors import Untravelled
from penstock.fingerprint.code import is_users, text_of
from penstock.fingerprint.comparison import MODULE, MOST_PARTS, SHORT, Part
from penstock.fingerprint.content import digest_of_array, joined
from penstock.fingerprint.file_versions import may_name_data
from penstock.fingerprint.reach import NOT_DATA, Reach

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_ALSO_PLAIN = (np.number, np.bool_, np.character, np.datetime64, PurePath)
NAMED_ITEMS = 64  # items of a longer container have no names
_MOST_OWNERS = 16
_MOST_LEAVES = 20_000
_DEEPEST = 10_000


class Walk:
    """Digests things in a fixed order, each once, and notes what it meets.

    A thing that is met inside itself counts as its number in that order; of things in ``without``, nothing counts.
    """

    def __init__(self, *, quick: bool = False, without: Iterable[Any] = ()) -> None:
        self.paths: set[str] = set()  # values that may be a file's path
        self.quick = quick  # digest only what is quickly read
        self.strict = not quick  # whether what cannot go to another process is an error
        self.nameless = 0  # above 0 where what is met has no name
        self.initializes = False  # whether what is met initializes workers: seeds and ranks are no data there
        self.told = False
        """Whether what is met is within what has a ``set_epoch``: generators and long containers count there."""
        self.torch: Any = sys.modules.get("torch")  # the module, if it is imported
        self.reach = Reach()  # what the code that is met names
        self._leaves: list[tuple[str, bytes, str]] = []
        self._owners: dict[str, Part] = {}
        # With the thing, so that its id stays its own.
        self._done: dict[int, tuple[bytes, Any]] = {id(thing): (b"left out", thing) for thing in without}
        self._partly: set[int] = set()  # what has been met, and counts as a whole once it is met where ``told``
        self._within: dict[int, int] = {}
        self._entered = 0

    def digests(self, things: Mapping[str, Any]) -> bytes:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(limit, _DEEPEST))  # functions that call functions are deep
        try:
            named: list[bytes] = []
            for name, thing in things.items():
                self.initializes = name == "worker_init_fn"
                named.append(joined(name, self.digest(name, thing)))
            self.initializes = False
            return joined(*named, *self.named_by_code())
        finally:
            sys.setrecursionlimit(limit)

    def leaf(self, name: str, digest: bytes, shown: str = "") -> bytes:
        if not self.nameless and len(self._leaves) < _MOST_LEAVES:
            self._leaves.append((name, digest, shown))
        return digest

    def parts(self) -> dict[str, Part]:
        """Return what was met, by name; where there is much of it, deep names are put together."""
        owners = dict(sorted(self._owners.items())[:_MOST_OWNERS])
        most = MOST_PARTS - len(owners)
        groups: dict[str, dict[tuple[str, bytes, str], None]] = {}
        for depth in range(16, 0, -1):
            groups = {}
            for leaf in self._leaves:
                groups.setdefault(_cut(leaf[0], depth)[:80], {})[leaf] = None
            if len(groups) <= most:
                break
        for name, leaves in islice(groups.items(), most):
            digest = joined(*(digest for _, digest, _ in leaves)).hex()[:8]
            owners[name] = Part(digest, next(iter(leaves))[2] if len(leaves) == 1 else "")
        return owners

    def digest(self, path: str, thing: Any) -> bytes:
        kind = type(thing)
        if kind in _PLAIN or isinstance(thing, _ALSO_PLAIN):
            return self._plain(path, thing)
        if (known := self._done.get(id(thing))) and not (self.told and id(thing) in self._partly):
            return known[0]
        if id(thing) in self._within:
            return joined("within", str(self._within[id(thing)]))
        if kind is not tuple:  # equal tuples may be one
            self._entered += 1
            self._within[id(thing)] = self._entered
        told, self.told = self.told, self.told or hasattr(kind, "set_epoch")
        try:
            digest = self.other(path, thing)
        except Exception as error:
            if not self.strict:
                digest = joined("unread", kind.__qualname__)
            elif isinstance(error, Untravelled):
                raise
            else:
                text = f"{path[:200]} ({kind.__qualname__}) cannot go to another process: {raised(error)}"
                raise Untravelled(text) from error
        finally:
            self.told = told
            self._within.pop(id(thing), None)
        self._done[id(thing)] = digest, thing
        return digest

    def partly(self, thing: Any) -> bool:
        """Whether not all of a thing counts that ``set_epoch`` may change; that is noted."""
        (self._partly.discard if self.told else self._partly.add)(id(thing))
        return not self.told

    def other(self, path: str, thing: Any) -> bytes:
        """Digest a thing that is no plain value, and is met for the first time."""
        raise NotImplementedError

    def named_by_code(self) -> Iterable[bytes]:
        """Digest what the code that was met names otherwise than by its bytecode."""
        raise NotImplementedError

    def named_built_ins(self) -> Iterator[bytes]:
        done: set[str] = set()
        while left := [each for each in self.reach.built_ins().items() if each[0] not in done]:
            for name, value in left:  # a function may read others
                done.add(name)
                yield joined(name, self.digest(f"builtins.{name}", value))

    def unnamed(self, path: str, thing: Any) -> bytes:
        self.nameless += 1
        try:
            return self.digest(f"{path}[...]", thing)
        finally:
            self.nameless -= 1

    def as_if_first(self, path: str, thing: Any) -> bytes:
        """Digest a thing without a name, and forget it: the next is digested as if it had not been met."""
        done, entered = len(self._done), self._entered
        digest = self.unnamed(path, thing)
        while len(self._done) > done:
            self._done.popitem()
        self._entered = entered
        return digest

    def attributes(self, path: str, state: Mapping[str, Any], masked: Iterable[str] = ()) -> bytes:
        names = sorted(name for name in self.counting(state) if name not in masked)
        return joined(*(joined(name, self.digest(f"{path}.{name}", state[name])) for name in names))

    def counting(self, named: Mapping[Any, Any]) -> list[Any]:
        """List the names of values that count."""
        if not self.initializes:
            return list(named)
        return [name for name, value in named.items() if not (NOT_DATA.search(str(name)) and is_plain(value))]

    def owner(self, module: str) -> str:
        """Name a module with its version, or with a digest of its file."""
        if self.quick:
            return module
        text = text_of(module)
        name, _, version = text.partition(" ")
        if version:
            users = is_users(module)
            name = f"{MODULE}{name}" if users else f"the version of {name.partition('.')[0]}"
            self._owners[name] = Part(joined(version).hex()[:8], "" if users else version)
        return text

    def _plain(self, path: str, thing: Any) -> bytes:
        kind, shown = type(thing), ""
        if isinstance(thing, (bytes, np.generic)):
            content = digest_of_array(np.frombuffer(thing, np.uint8) if kind is bytes else np.asarray(thing))
        else:
            to_text: Any = str if isinstance(thing, (str, PurePath)) else hex if kind is int else repr
            content = to_text(thing)
        if isinstance(thing, str) and len(thing) < 100:
            self.reach.words.add(thing)
        if not (self.nameless or self.quick):
            self.note_paths((thing,))
            shown = SHORT.repr(thing)[:80] if kind is not int or len(content) < 1000 else ""
        return self.leaf(path, joined(kind.__name__, content), shown)

    def note_paths(self, items: Iterable[Any]) -> None:
        for item in islice(items, 16):
            for text in item if isinstance(item, tuple) else (item,):
                if may_name_data(text):
                    self.paths.add(str(text))


def _cut(name: str, depth: int) -> str:
    """Cut a part's name to ``depth`` steps: ``dataset.transforms[0].size`` to 2 is ``dataset.transforms``."""
    ends = [found.start() for found in re.finditer(r"[.\[(]", name)]
    return name[: ends[depth - 1]] if len(ends) >= depth else name


def is_plain(value: Any) -> bool:
    """Whether a value is a number, a text or nothing, or a short container of such."""
    if type(value) in (list, tuple, dict):
        return len(value) <= NAMED_ITEMS and all(map(is_plain, value.values() if type(value) is dict else value))
    return type(value) in _PLAIN
