"""What a function's compiled code looks up and assigns, and what its arguments are unless given."""

from __future__ import annotations

import dis
import re
from contextlib import suppress
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any, cast


def defaults_of(function: FunctionType) -> dict[str, Any]:
    """Return the default values of a function's arguments, by name."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    return {**dict(zip(names, defaults, strict=True)), **(function.__kwdefaults__ or {})}


def closure_of(function: FunctionType) -> dict[str, Any]:
    """Return what a function's closure holds, by name."""
    held: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it is empty
            held[name] = cell.cell_contents
    return held


@lru_cache(maxsize=4096)
def read_by(code: CodeType, local: str | None = None) -> list[list[str]]:
    """List what a function's code, and the functions inside it, look up, such as ``args.model.depth``.

    These are names from outside, or the attributes of one local variable. ``config["size"]`` ends in ``[size``.
    """
    found: list[list[str]] = []
    follows, key = False, ""
    for instruction in dis.get_instructions(code):
        operation: str = instruction.opname
        argument: Any = instruction.argval
        outside = operation in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF")
        if outside or "LOAD_FAST" in operation:
            name: str = argument if isinstance(argument, str) else argument[-1]  # of two, the last is on top
            follows, key = name == local if local else outside, ""
            if follows:
                found.append([name])
        elif follows and operation in ("LOAD_ATTR", "LOAD_METHOD"):
            found[-1].append(argument)
        elif follows and operation == "LOAD_CONST" and isinstance(argument, str):
            key = argument
        elif follows and key and (operation == "BINARY_SUBSCR" or instruction.argrepr == "[]"):
            found[-1].append(f"[{key}")
            key = ""
        elif operation != "CACHE":
            follows, key = False, ""
    inside = [const for const in code.co_consts if isinstance(const, CodeType)]
    return found + [path for const in inside for path in read_by(const, local)]


def imported_by(code: CodeType) -> list[tuple[str, list[str]]]:
    """List what a function's code reads of modules that it imports when it runs, such as ``["augment", "SIZE"]``.

    Each has the module's name before it, with dots if it is relative.
    """
    found: list[tuple[str, list[str]]] = []
    instructions = list(dis.get_instructions(code))
    for i, one in enumerate(instructions):
        if one.opname == "IMPORT_NAME":
            level, names = instructions[i - 2].argval, instructions[i - 1].argval
            module = "." * level + one.argval
            if names:
                found += [(module, [one.argval, name]) for name in names]
            else:  # import a.b binds a, and import a.b as c what is found from there on
                stored = next(each for each in instructions[i + 1 :] if each.opname.startswith("STORE_"))
                renamed = instructions[i + 1].opname == "IMPORT_FROM"
                bound = module if renamed else module.partition(".")[0]
                found += [(bound, path) for path in read_by(code, stored.argval)]
    inside = [const for const in code.co_consts if isinstance(const, CodeType)]
    return found + [each for const in inside for each in imported_by(const)]


def words_of(code: CodeType) -> set[str]:
    """Return the texts in a function's code that may name something, such as a variable of the environment."""
    found: set[str] = set()
    for const in code.co_consts:
        if isinstance(const, CodeType):
            found |= words_of(const)
        for each in cast("tuple[Any, ...]", const) if isinstance(const, (tuple, frozenset)) else (const,):
            text: Any = each.decode(errors="replace") if isinstance(each, bytes) else each
            if isinstance(text, str):
                found.update([text] if len(text) < 100 and _NAME.fullmatch(text) else _VARIABLE.findall(text))
    return found


_NAME = re.compile(r"[\w.]+")
_VARIABLE = re.compile(r"\$\{?(\w+)")


def names_of(code: CodeType) -> set[str]:
    """Return all names that a function's code looks up, of whatever."""
    return {*code.co_names}.union(*(names_of(const) for const in code.co_consts if isinstance(const, CodeType)))


def builds_text(code: CodeType, also_by_sum: bool) -> bool:
    """Whether a function's code may put texts together."""
    found = {one.opname for one in dis.get_instructions(code)}
    return bool(
        "BUILD_STRING" in found
        or (also_by_sum and "BINARY_OP" in found)
        or {"format", "join", "startswith", "endswith", "upper", "expandvars"} & names_of(code)
        or any(builds_text(const, also_by_sum) for const in code.co_consts if isinstance(const, CodeType))
    )


def stored_by(code: CodeType) -> set[str]:
    """List the attributes that a function's code assigns, of whatever object."""
    return {one.argval for one in dis.get_instructions(code) if one.opname == "STORE_ATTR"}
