"""What code reads by names that its bytecode does not chain together: variables, modules, replaced functions."""

from __future__ import annotations

import builtins
import os
import re
import sys
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from penstock.fingerprint.code import MAIN, builds_text, file_of, is_users, names_of, read_by, words_of

NEVER = re.compile(
    r"PENSTOCK_.*|(.*_)?(RANK|WORLD_SIZE|RUN_?ID|RUN_?NAME|RUN_?INDEX)|CUDA_VISIBLE_DEVICES|TMPDIR|MASTER_(ADDR|PORT)"
)
"""Variables of the environment that differ between runs of one script, and decide no sample."""
NOT_DATA = re.compile(r"(?i)seed|rank|world_?size|worker|replicas|(^|_)lr$|learning_?rate|device|gpu")
"""Names of what is bound to a function, or set in a module, for each run."""
_LOOKS_AT_VARIABLES = {"environ", "environb", "getenv", "getenvb", "expandvars"}
_READS_ALL = {"vars", "getattr", "__dict__", "attrgetter", "__getattribute__"}
_BY_NAME = {"modules", "import_module", "__import__"}
_PARSES_ARGUMENTS = {"parse_args", "parse_known_args"}
_OF_BUILTINS = {"builtins", "_io", "io", "_sitebuiltins", "IPython"}
_DEEPEST = 4
_MOST = 5000


class CodeNames(NamedTuple):
    """What code names: names that it looks up, texts in it, and whether it puts texts together."""

    names: frozenset[str]
    words: frozenset[str]
    builds: bool


@lru_cache(maxsize=4096)
def looks_of(code: CodeType) -> CodeNames:
    names = frozenset(names_of(code))
    return CodeNames(
        names, frozenset(words_of(code)), builds_text(code, not names.isdisjoint(_LOOKS_AT_VARIABLES))
    )


class Reach:
    """Collects what code names, and what it may read by that."""

    def __init__(self) -> None:
        self.names: set[str] = set()  # names that it looks up
        self.words: set[str] = set()  # texts that may name something
        self.modules: dict[str, ModuleType] = {}  # the user's modules that are handed to it, by name
        self.installed: dict[int, Any] = {}  # functions, classes and modules of installed packages that it names
        self._builds = False
        self.looks_at_variables = False

    def add(self, function: FunctionType) -> None:
        """Collect what a function of the user's names."""
        looks = looks_of(function.__code__)
        self.names |= looks.names
        self.words |= looks.words
        self._builds |= looks.builds
        self.looks_at_variables |= not looks.names.isdisjoint(_LOOKS_AT_VARIABLES)
        if not looks.names.isdisjoint(_BY_NAME):
            own = {function.__globals__.get("__name__", "")} if "__name__" in looks.names else set[str]()
            for name in sorted(looks.words | own):
                if isinstance(found := sys.modules.get(name), ModuleType) and is_users(name) and name not in MAIN:
                    self.modules[name] = found

    def of_process(self) -> dict[str, Any]:
        """Return the set environment variables and the command lines that the code may read, by expression."""
        found = [name for name in os.environ if name in self.words]
        if self.looks_at_variables and self._builds:
            parts = {part for word in self.words for part in word.upper().split("_")}
            ends = [word for word in self.words if len(word) > 2 and word != "_" * len(word)]
            found += [
                name
                for name in os.environ
                if parts.issuperset(name.upper().split("_"))
                or any(
                    (word.endswith("_") and name.startswith(word)) or (word[0] == "_" and name.endswith(word))
                    for word in ends
                )
            ]
        named = {f"environ[{name!r}]": os.environ[name] for name in sorted(found) if not NEVER.fullmatch(name)}
        parsed = ("argv",) if self.names & _PARSES_ARGUMENTS else ()
        lines = {"argv", "orig_argv"}.intersection(self.names | self.words).union(parsed)
        return named | {f"sys.{name}": getattr(sys, name) for name in sorted(lines)}

    def built_ins(self) -> dict[str, Any]:
        """Return what the process has put into ``builtins``, and the code may read."""
        named, there = self.names | self.words, vars(builtins)
        return {name: there[name] for name in sorted(named & there.keys()) if not _is_own(name, there[name])}

    def attributes(self, module: ModuleType) -> list[str]:
        """List what the code may read of a module that is handed to it."""
        all_of_it = not self.names.isdisjoint(_READS_ALL)
        return sorted(
            name
            for name, value in vars(module).items()
            if not name.startswith("__")
            and (
                name in self.names
                or name in self.words
                or (all_of_it and _may_be_data(value) and name[0] != "_" and not NOT_DATA.search(name))
            )
        )

    def replacements(self) -> dict[str, FunctionType]:
        """Return the user's functions that stand in the place of installed ones which the code reaches."""
        found = {
            f"{kind.__module__}.{kind.__qualname__}.{name}": value
            for one in self.installed.values()
            for kind in list(vars(one).values() if isinstance(one, ModuleType) else getattr(one, "__mro__", ()))
            if isinstance(kind, type) and not is_users(kind.__module__)
            for name, value in list(vars(kind).items())
            if (name in self.names or isinstance(one, type)) and is_replacement(value, kind.__module__)
        }
        starts = [one for one in self.installed.values() if not isinstance(one, ModuleType) and _functions_of(one)]
        if starts and (placed := _replaced()):
            reached = _reached(starts)
            found |= {name: value for name, value in placed.items() if id(value) in reached}
        return dict(sorted(found.items()))


def is_replacement(value: Any, module: str) -> bool:
    """Whether what an installed module holds is a function of the user's."""
    if type(value) is not FunctionType:
        return False
    whose = value.__globals__.get("__name__", "")
    if whose in MAIN:
        return True
    top = whose.partition(".")[0]
    apart = top != module.partition(".")[0] and top not in sys.stdlib_module_names
    return apart and bool(file_of(whose)) and is_users(whose)


def _is_own(name: str, value: Any) -> bool:
    """Whether it is Python's own, or a notebook's, or ``print``, which ranks replace to be silent."""
    module = str(getattr(value, "__module__", "")).partition(".")[0]
    own = module in _OF_BUILTINS and getattr(value, "__name__", name) == name
    return own or name == "print" or name.startswith("__")


def _may_be_data(value: Any) -> bool:
    kinds = (bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, FunctionType, type(None))
    return isinstance(value, kinds) or type(value).__name__ in ("ndarray", "Tensor")


def _replaced() -> dict[str, FunctionType]:
    return {
        f"{module}.{name}": value
        for module, held in list(sys.modules.items())
        if type(held) is ModuleType
        for name, value in list(vars(held).items())
        if type(value) is FunctionType and value.__globals__ is not vars(held)
        if is_replacement(value, module) and not is_users(module)
    }


def _reached(now: list[Any]) -> set[int]:
    """Return the ids of functions and classes named by installed code, directly or by way of others."""
    seen: set[int] = set()
    for _ in range(_DEEPEST):
        then: list[Any] = []
        for one in now:
            if id(one) in seen or len(seen) > _MOST:
                continue
            seen.add(id(one))
            for function in _functions_of(one):
                for names in read_by(function.__code__):
                    value = resolved(names, function.__globals__)
                    if isinstance(value, (FunctionType, type)):
                        then.append(value)
        now = then
    return seen | {id(one) for one in now}


def _functions_of(thing: Any) -> list[FunctionType]:
    if isinstance(thing, FunctionType):
        return [thing]
    kinds: tuple[type, ...] = thing.__mro__[:-1]
    held: list[Any] = [value for one in kinds for value in vars(one).values()]
    plain = [getattr(value, "__func__", value) for value in held]
    return [value for value in plain if isinstance(value, FunctionType)]


def resolved(names: list[str], held: dict[str, Any]) -> Any:
    """Return what a chain of names leads to, through modules; None if to nothing."""
    value: Any = held.get(names[0], vars(builtins).get(names[0]))
    for name in names[1:]:
        if not isinstance(value, ModuleType):
            break
        value = vars(value).get(name)
    return value
