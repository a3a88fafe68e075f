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
        operation, argument = instruction.opname, instruction.argval
        if operation in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF") or operation.startswith("LOAD_FAST"):
            name: str = argument[-1] if "_LOAD_" in operation else argument  # it loads two names, the last on top
            outside = not operation.startswith("LOAD_FAST")
            follows = name == local if local else outside
            if follows:
                found.append([name])
        elif follows and operation in ("LOAD_ATTR", "LOAD_METHOD"):
            found[-1].append(argument)
        elif operation != "CACHE":
            follows = False
    inside = [const for const in code.co_consts if isinstance(const, CodeType)]
    return found + [path for const in inside for path in read_by(const, local)]


def stored_by(code: CodeType) -> set[str]:
    """List the attributes that a function's code assigns, of whatever object."""
    return {one.argval for one in dis.get_instructions(code) if one.opname == "STORE_ATTR"}
