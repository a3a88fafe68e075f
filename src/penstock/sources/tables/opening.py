"""What is read of the tables that a user names: which columns, which rows, and the memory that they take."""

from __future__ import annotations

# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
import ast
import operator
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import pairwise
from typing import Any, cast

import numpy as np

from penstock.contracts import Ids, Tables
from penstock.errors import BadSetting
from penstock.sources.tables import Columns
from penstock.sources.tables.columns import TableColumn, Values, VaryingRows, columns_of, flat_fields, pa
from penstock.sources.tables.loading import TableLeaf, TableReading

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


def condition_of(text: str | Any, schema: Any = ()) -> Any:
    """Return the ``pyarrow.compute.Expression`` of a condition, which may be one already.

    Else it has columns, numbers, texts and lists, compared and joined by ``and``, ``or`` and ``not``, such as
    ``"label < 10 and split in ['train', 'extra']"``; ``x == None`` holds where x is null. Columns that are
    float16 in ``schema``, an Arrow schema, are compared as float32.
    """
    if isinstance(text, compute.Expression):
        return text
    try:
        kinds = {".".join(path): kind for path, kind in flat_fields((), schema)}
        found = _built(ast.parse(str(text), mode="eval").body, kinds)
    except (SyntaxError, _Unknown, TypeError, ValueError, OverflowError) as error:
        raise BadSetting(
            f"filter={text!r}: {error}. Write columns, numbers, texts and lists with <, <=, ==, !=, >, >=, in, "
            "and, or, not, such as 'label < 10'; or pass an expression of pyarrow.compute"
        ) from None
    if not isinstance(found, compute.Expression):
        raise BadSetting(f"filter={text!r}: it names no column")
    return found


def columns_in(condition: Any, tables: Tables) -> list[str]:
    """Return the columns of tables that a condition needs; all of them if nobody can say."""
    text, counts = str(condition), Counter[str](tables.schema.names)
    names = [name for name, count in counts.items() if count == 1]
    return [name for name in names if name in text] or names


class _Unknown(Exception):
    """A part of a condition that has no meaning."""


def _built(node: ast.expr, kinds: Mapping[str, Any]) -> Any:
    """Return what a part of a condition is; ``kinds`` are Arrow's types of columns, as far as they are known."""
    match node:
        case ast.Name() | ast.Attribute():
            if not all(map(str.isidentifier, names := (name := ast.unparse(node)).split("."))):
                raise _Unknown(f"{name} is no column")
            is_half = name in kinds and pa.types.is_float16(kinds[name])  # which Arrow does not compare
            return compute.field(*names).cast(pa.float32()) if is_half else compute.field(*names)
        case ast.Constant():
            return node.value
        case ast.List() | ast.Tuple() | ast.Set():
            return [_built(each, kinds) for each in node.elts]
        case ast.UnaryOp(op=ast.Not()):
            return ~_built(node.operand, kinds)
        case ast.UnaryOp(op=ast.USub()):
            return -_built(node.operand, kinds)
        case ast.BoolOp():
            joined, *others = (_built(each, kinds) for each in node.values)
            for other in others:
                joined = joined & other if isinstance(node.op, ast.And) else joined | other
            return joined
        case ast.BinOp() if type(node.op) in _COMPUTED:
            left, right = _built(node.left, kinds), _built(node.right, kinds)
            if isinstance(right, compute.Expression) and not isinstance(left, compute.Expression):
                left = compute.scalar(left)
            return _COMPUTED[type(node.op)](left, right)
        case ast.Compare():
            pairs = zip([node.left, *node.comparators], node.ops, node.comparators, strict=False)
            first, *others = (
                _compared(_built(one, kinds), op, _built(other, kinds), kinds.get(ast.unparse(one)))
                for one, op, other in pairs
            )
            for other in others:
                first = first & other
            return first
        case _:
            raise _Unknown(f"{ast.unparse(node)} has no meaning here")


def _compared(left: Any, how: ast.cmpop, right: Any, kind: Any) -> Any:
    """Compare two sides; ``kind`` is the type of the left one, if it is a column whose type is known."""
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
    if (
        isinstance(right, list)
        and kind == pa.uint64()
        and all(type(each) is int for each in cast("list[Any]", right))
    ):
        return _COMPARED[type(how)](left, pa.array(right, pa.uint64()))
    return _COMPARED[type(how)](_unsigned(left, right), _unsigned(right, left))


def _unsigned(side: Any, column: Any) -> Any:
    """Return a whole number beside a column as uint64: beside int64, Arrow casts a column of uint64 to int64."""
    is_number = isinstance(column, compute.Expression) and type(side) is int and side >= 0
    return compute.scalar(pa.scalar(side, pa.uint64())) if is_number else side


def check_alike(tables: Tables, names: Sequence[str] | None, remedy: str) -> None:
    """Refuse columns, all unless some are named, that are not alike in all files; ``remedy`` avoids them."""
    for column, why in tables.unlike.items():
        if names is None or any(name == column or name.startswith(f"{column}.") for name in names):
            raise BadSetting(f"{why}: write them alike, or {remedy}")


class OpenedTables:
    """Tables, and what is read of them: ``columns`` of the rows that ``condition`` holds for.

    ``ragged`` is what becomes of lists: ``"refuse"`` if they must be equally long. ``fill`` is what stands in
    place of nulls, by column, or of all.
    """

    def __init__(
        self, tables: Tables, columns: Columns, ragged: str, fill: Any, condition: Any, threads: int
    ) -> None:
        found = None if condition is None else condition_of(condition, tables.schema)
        needed = [] if found is None else columns_in(found, tables)
        outputs = _outputs(tables, columns)
        by_column = _fills(fill, outputs)
        self.reading = TableReading(tables, outputs, by_column, found, needed)  # what is read
        with ThreadPoolExecutor(threads, "penstock-tables") as pool:
            self.groups, self.rows = _counted(self.reading, pool, condition)  # groups with such rows; how many
            # In a thread that ends, and closes the file.
            first = pool.submit(self.reading.read, int(self.groups[0])).result() if self._varies else ()
        if ragged == "refuse" and self._varies:
            self.reading = self.reading._replace(outputs=_even(outputs, first))
        self.nbytes = self._bytes(first)  # bytes of each in memory, about

    @property
    def _varies(self) -> bool:
        return any(column.varies for column in self.reading.columns)

    def _bytes(self, first: Sequence[Values | VaryingRows]) -> Ids:
        """Return the bytes of each group: of arrays exactly, of others as many for a stored byte as in the first.

        Values that a file stores once, and names again and again, take more room in memory.
        """
        tables, columns = self.reading.tables, self.reading.columns
        nbytes = sum(column.row_bytes for column in columns) * self.rows
        part = self.rows / tables.group_rows[self.groups]
        for column, values in zip(columns, first, strict=False):
            if isinstance(values, VaryingRows) and column.varies:
                stored = tables.group_bytes(column.name)[self.groups]
                swells = values.values.nbytes / max(1.0, float(stored[0] * part[0]))
                nbytes = nbytes + np.ceil(stored * part * max(1.0, swells)).astype(np.int64)
        return np.maximum(nbytes, 1)

    def sorted_by(self) -> str:
        """Return a column by whose values the groups lie one after the other; empty if there is none."""
        for column in self.reading.columns:
            ranges = self.reading.tables.ranges(column.name) if len(self.groups) > 2 else None
            if ranges is None:
                continue
            own: list[tuple[Any, Any]] = [ranges[int(group)] for group in self.groups]
            rises = all(one[1] <= other[0] for one, other in pairwise(own))
            few = sum(least == most for least, most in own) > len(own) / 2 and self.rows.max() > 1
            if rises and few and own[0] != own[-1]:
                return column.name
        return ""


_TURNS = re.compile(r"!=|\w\(")
"""In an expression of pyarrow's: what may be true of NaN. Functions, ``invert`` too, are written ``name(...)``."""
_UNKNOWN = re.compile(r"No match for FieldRef\.Name\((.*?)\)")
_NO_KERNEL = re.compile(r"Function '.*' has no kernel matching input types \((.*), (.*)\)")


def _outputs(tables: Tables, columns: Columns) -> list[TableLeaf]:
    def of(names: Sequence[str] | None) -> list[TableColumn]:
        check_alike(tables, names, "leave it out with columns=, a list of the others")
        return columns_of(tables.schema, names, tables.root)

    if not isinstance(columns, Mapping):
        names = [columns] if isinstance(columns, str) else columns
        return [TableLeaf.of(column.name, [column]) for column in of(names)]
    found = list[TableLeaf]()
    for name, named in columns.items():
        own = of([named] if isinstance(named, str) else named)
        stacked = not isinstance(named, str)
        if (stacked and any(each.kind != "fixed" or each.shape for each in own)) or (not stacked and len(own) > 1):
            which = ", ".join(f"{each.name} ({each.kind})" for each in own)
            raise BadSetting(
                f"columns[{name!r}]: only columns of one number a row become one array, not {which}: "
                "name the others by themselves"
            )
        if stacked and not _fit_together(own):
            which = ", ".join(f"{each.name} ({each.dtype})" for each in own)
            raise BadSetting(f"columns[{name!r}]: no type of numbers holds those of {which}")
        found.append(TableLeaf.of(name, own, stacked=stacked))
    if not found:
        raise BadSetting(f"{tables.root}: columns={{}} names no column; it has {', '.join(tables.schema.names)}")
    return found


def _fit_together(columns: Sequence[TableColumn]) -> bool:
    """Whether one array can hold columns; whole numbers that only fit floats do not, nor numbers beside times."""
    kinds = [column.dtype for column in columns]
    different = {kind.kind for kind in kinds}
    try:
        return np.result_type(*kinds).kind in different and (len(different) == 1 or not different & {*"mM"})
    except TypeError:
        return False


def _fills(fill: Any, outputs: Sequence[TableLeaf]) -> dict[str, Any]:
    names = [column.name for output in outputs for column in output.columns]
    if not isinstance(fill, Mapping):
        return {} if fill is None else dict.fromkeys(names, fill)
    by_column: dict[str, Any] = {str(name): value for name, value in fill.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if unknown := [name for name in by_column if name not in names]:
        raise BadSetting(f"fill= names {unknown[0]!r}, which is not read; columns are {', '.join(names)}")
    return by_column


def _counted(reading: TableReading, pool: ThreadPoolExecutor, condition: Any) -> tuple[Ids, Ids]:
    """Return the groups that have rows to read, and how many."""
    tables = reading.tables
    if reading.condition is None:
        return np.arange(len(tables.group_rows)), tables.group_rows
    try:
        groups = np.arange(len(tables.group_rows))
        if _can_exclude(reading):
            groups = np.flatnonzero(tables.may_hold(reading.condition))
        rows = np.array(list(pool.map(reading.count, groups.tolist())), np.int64)
    except (TypeError, ValueError, NotImplementedError, KeyError) as error:  # pyarrow's own
        if isinstance(error, BadSetting):
            raise
        unknown = _UNKNOWN.match(str(error))
        name, others = unknown[1] if unknown else "", ", ".join(tables.schema.names)
        why = (
            tables.unlike.get(name, f"there is no column {name!r}; there are {others}")
            if unknown
            else _said(error)
        )
        raise BadSetting(f"filter={condition!r}: {why}") from None
    kept = rows > 0
    if not kept.any():
        raise BadSetting(f"filter={condition!r} leaves none of {int(tables.group_rows.sum()):,} rows")
    return groups[kept], rows[kept]


def _said(error: Exception) -> str:
    """Return what pyarrow says of a filter, for a person."""
    apart = _NO_KERNEL.match(str(error))
    how = "texts stand in quotes; of bool there are True and False"
    return f"{apart[1]} and {apart[2]} are not compared or computed ({how})" if apart else str(error)


def _can_exclude(reading: TableReading) -> bool:
    """Whether statistics show that no row of a group is wanted.

    They leave NaN out. Comparisons with that are false, so it only counts where a condition turns one round, or
    asks something else, such as whether a number is NaN.
    """
    schema = reading.tables.schema
    kinds = [kind for name in reading.needed for _, kind in flat_fields((name,), schema.field(name).type)]
    return not any(map(pa.types.is_floating, kinds)) or not _TURNS.search(str(reading.condition))


def _even(outputs: Sequence[TableLeaf], first: Sequence[Values | VaryingRows]) -> list[TableLeaf]:
    """Return outputs whose lists must be as long as in the first row."""
    found = list[TableLeaf]()
    read = iter(first)
    for output in outputs:
        columns = [_as_long(column, next(read)) for column in output.columns]
        found.append(TableLeaf.of(output.name, columns, stacked=output.stacked))
    return found


def _as_long(column: TableColumn, values: Any) -> TableColumn:
    if column.kind != "list":
        return column
    return column._replace(kind="even", shape=(int(values.lengths[0]), *column.shape))
