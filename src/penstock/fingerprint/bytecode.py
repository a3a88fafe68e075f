"""What a function's compiled code looks up and assigns, and what its arguments are unless given."""

from __future__ import annotations

import dis
from types import CodeType, FunctionType
from typing import Any


def defaults_of(function: FunctionType) -> dict[str, Any]:
    """Return the default values of a function's arguments, by name."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    return {**dict(zip(names, defaults, strict=True)), **(function.__kwdefaults__ or {})}


def read_by(code: CodeType, local: str | None = None) -> list[list[str]]:
    """List what a function's code, and the functions inside it, look up, such as ``args.model.depth``.

    These are names from outside, or the attributes of one local variable.
    """
    found: list[list[str]] = []
    follows = False
    for instruction in dis.get_instructions(code):
        operation: str = instruction.opname
        argument: Any = instruction.argval
        outside = operation in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF")
        if outside or "LOAD_FAST" in operation:
            name: str = argument if isinstance(argument, str) else argument[-1]  # of two, the last is on top
            follows = name == local if local else outside
            if follows:
                found.append([name])
        elif follows and operation in ("LOAD_ATTR", "LOAD_METHOD"):
            found[-1].append(argument)
        elif operation != "CACHE":
            follows = False
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
    """Return the texts in a function's code that may name a variable of the environment."""
    found: set[str] = set()
    for const in code.co_consts:
        if isinstance(const, CodeType):
            found |= words_of(const)
        elif isinstance(const, str) and const.isidentifier():
            found.add(const)
    return found


def stored_by(code: CodeType) -> set[str]:
    """List the attributes that a function's code assigns, of whatever object."""
    return {one.argval for one in dis.get_instructions(code) if one.opname == "STORE_ATTR"}
