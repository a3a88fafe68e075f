"""Conditions on rows, from the text that a user writes."""

# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from penstock.errors import BadSetting

compute: Any = import_module("pyarrow.compute")

_COMPARED: Mapping[type[ast.cmpop], Any] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda left, right: left.isin(right),
    ast.NotIn: lambda left, right: ~left.isin(right),
}
_COMPUTED: Mapping[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: left * 1.0 / right,  # Arrow's own cuts what divides whole numbers
}


def condition_of(text: str | Any) -> Any:
    """Return the ``pyarrow.compute.Expression`` of a condition, which may be one already.

    Else it has columns, numbers, texts and lists, compared and joined by ``and``, ``or`` and ``not``, such as
    ``"label < 10 and split in ['train', 'extra']"``; ``x == None`` holds where x is null.
    """
    if isinstance(text, compute.Expression):
        return text
    try:
        found = _built(ast.parse(str(text), mode="eval").body)
    except (SyntaxError, _Unknown, TypeError, ValueError, OverflowError) as error:
        raise BadSetting(
            f"filter={text!r}: {error}. Write columns, numbers, texts and lists with <, <=, ==, !=, >, >=, in, "
            "and, or, not, such as 'label < 10'; or pass an expression of pyarrow.compute"
        ) from None
    if not isinstance(found, compute.Expression):
        raise BadSetting(f"filter={text!r}: it names no column")
    return found


def columns_in(condition: Any, names: list[str]) -> list[str]:
    """Return the columns of a table that a condition needs; all of them if nobody can say."""
    text = str(condition)
    return [name for name in names if name in text] or names


class _Unknown(Exception):
    """A part of a condition that has no meaning."""


def _built(node: ast.expr) -> Any:
    match node:
        case ast.Name():
            return compute.field(node.id)
        case ast.Attribute():
            if not all(map(str.isidentifier, names := ast.unparse(node).split("."))):
                raise _Unknown(f"{ast.unparse(node)} is no column")
            return compute.field(*names)
        case ast.Constant():
            return node.value
        case ast.List() | ast.Tuple() | ast.Set():
            return [_built(each) for each in node.elts]
        case ast.UnaryOp(op=ast.Not()):
            return ~_built(node.operand)
        case ast.UnaryOp(op=ast.USub()):
            return -_built(node.operand)
        case ast.BoolOp():
            joined, *others = map(_built, node.values)
            for other in others:
                joined = joined & other if isinstance(node.op, ast.And) else joined | other
            return joined
        case ast.BinOp() if type(node.op) in _COMPUTED:
            left, right = _built(node.left), _built(node.right)
            if isinstance(right, compute.Expression) and not isinstance(left, compute.Expression):
                left = compute.scalar(left)
            return _COMPUTED[type(node.op)](left, right)
        case ast.Compare():
            pairs = zip([node.left, *node.comparators], node.ops, node.comparators, strict=False)
            first, *others = (_compared(_built(left), op, _built(right)) for left, op, right in pairs)
            for other in others:
                first = first & other
            return first
        case _:
            raise _Unknown(f"{ast.unparse(node)} has no meaning here")


def _compared(left: Any, how: ast.cmpop, right: Any) -> Any:
    if left is None:
        left, right = right, left
    if right is None and left is not None and isinstance(how, (ast.Eq, ast.Is, ast.NotEq, ast.IsNot)):
        return left.is_null() if isinstance(how, (ast.Eq, ast.Is)) else ~left.is_null()
    if (
        right is None
        or type(how) not in _COMPARED
        or (isinstance(how, (ast.In, ast.NotIn)) and isinstance(right, str))
    ):
        raise _Unknown(f"{type(how).__name__} has no meaning here")
    return _COMPARED[type(how)](left, right)
