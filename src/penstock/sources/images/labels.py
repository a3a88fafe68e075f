"""Labels of images: from the folders that they lie in, or from a file or a dict."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from penstock.basics.terminal import printable, say
from penstock.contracts import Records
from penstock.errors import BadSetting

_SHOWN = 3
_MOST_CLASSES = 10_000_000
_MOST = 2**63 - 1
_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)(\s*#.*)?")


class LabelledRecords(Records, Protocol):
    """Records that have ``classes``: the uppermost folders; and ``labels`` beside the samples, or none."""

    @property
    def classes(self) -> Sequence[str]: ...

    @property
    def labels(self) -> Sequence[str]: ...


class Labels(NamedTuple):
    """What is known of each image."""

    values: npt.NDArray[Any]
    """A class for each image, int64; or where images have several, or none, a row of 0 and 1 (uint8)."""
    classes: Sequence[str]  # names of the classes


def labels_of(
    records: LabelledRecords, given: str | Path | Mapping[str, Any] | Sequence[Any] | npt.NDArray[Any] | None
) -> Labels | None:
    """Find the labels of images; None if they have none.

    ``given`` is a dict from their paths within the folder to a label or a list of labels; a file with a path and
    its labels in each line, between commas, tabs or spaces; a label for each image; or None for the labels beside
    them, or the folders that they lie in.
    """
    names = records.names
    index: Any = getattr(given, "index", ())  # of a table of pandas'; that of a list is a function
    if not callable(index) and not {*names}.isdisjoint(index):
        given = dict(zip(index, cast("Any", given).values.tolist(), strict=True))
    if given is None and not records.labels:
        return _by_folder(records)
    if given is None:
        return _numbered([[text] for text in records.labels], lambda i: f"{records.root}: the .cls of {names[i]}")
    if getattr(given, "ndim", 1) == 2:
        rows: npt.NDArray[Any] = np.asarray(given)
        if len(rows) != len(names) or not np.isin(rows, (0, 1)).all():
            raise BadSetting(
                f"labels= has shape {rows.shape}: give a row of 0 and 1 for each of {len(names):,} images"
            )
        return Labels(rows.astype(np.uint8), list(map(str, range(rows.shape[1]))))
    if isinstance(given, (set, frozenset)):
        raise BadSetting("labels=: a set has no order; give a list, a dict or a file")
    if not isinstance(given, (str, Path, Mapping)):
        if not isinstance(plain := _plain(given), Iterable):
            raise BadSetting(f"labels={given!r}: give a file, a dict, or a label for each image")
        every = [*cast("Iterable[Any]", plain)]
        if len(every) != len(names):
            raise BadSetting(f"labels= has {len(every):,} labels for {len(names):,} images")
        return _numbered([_several(label) for label in every], lambda i: f"labels=, row {i} ({names[i]})")
    lines: dict[str, int] = {}
    found = _read(Path(given), names, lines) if isinstance(given, (str, Path)) else given
    if missing := [name for name in names if name not in found]:
        raise BadSetting(
            f"labels= has none for {len(missing):,} of {len(names):,} images, such as "
            f"{', '.join(missing[:_SHOWN])}: paths are those within the folder"
        )
    if len(set(names)) < len(names):
        raise BadSetting("labels=: some images have equal paths, so paths do not distinguish them; give a list")
    at = {name: f"labels={given}, line {line}" for name, line in lines.items()}
    return _numbered([_several(found[name]) for name in names], lambda i: at.get(names[i], f"labels=, {names[i]}"))


def _by_folder(records: LabelledRecords) -> Labels | None:
    folders = [name.split("/", 1)[0] for name in records.names if "/" in name]
    if not folders:
        return None
    if others := len(records.names) - len(folders):
        alone = next(name for name in records.names if "/" not in name)
        raise BadSetting(
            f"{len(folders):,} images lie in class folders, and {others:,} in none, such as {alone}: move those "
            "into folders, or pass labels="
        )
    if empty := {*records.classes}.difference(folders):
        say(
            f"{printable(records.root)}: {len(empty):,} class folders have no image that can be read, such as "
            f"{printable(min(empty))}: they still have numbers (ImageFolder's allow_empty=True)"
        )
    return _by_name([[folder] for folder in folders], records.classes)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _several(label: Any) -> list[Any]:
    several = _plain(label)
    return [*several] if isinstance(several, Iterable) and not isinstance(several, (str, bytes)) else [several]


def _numbered(labels: list[list[Any]], where: Callable[[int], str]) -> Labels:
    """Take whole numbers as they are; number names in their order. ``where`` names the place of an image."""
    read = [[_read_one(label, where, i) for label in several] for i, several in enumerate(labels)]
    counts = {len(several) for several in read}
    if counts == {0, 1}:
        i = next(i for i, several in enumerate(read) if not several)
        raise BadSetting(
            f"{where(i)}: no label stands there, and others have one: give it one, or -100, which torch's "
            "cross_entropy leaves out"
        )
    kinds = Counter(type(label) for several in read for label in several)
    if len(kinds) > 1:
        rarer = min(kinds, key=lambda kind: kinds[kind])
        i, odd = next((i, each) for i, several in enumerate(read) for each in several if isinstance(each, rarer))
        raise BadSetting(
            f"{where(i)}: the label {odd!r}, where {kinds[int]:,} of {kinds.total():,} are numbers: give numbers "
            "alone, which stay as they are, or names alone, which are numbered"
        )
    if str in kinds:
        return _by_name(cast("list[list[str]]", read))
    numbers = cast("list[list[int]]", read)
    least, most = min(map(min, filter(None, numbers)), default=0), max(map(max, filter(None, numbers)), default=-1)
    if counts == {1}:
        classes = list(map(str, range(most + 1))) if 0 <= least and most < _MOST_CLASSES else []
        return Labels(np.array(numbers, np.int64)[:, 0], classes)
    if least < 0 or most >= _MOST_CLASSES:
        raise BadSetting(f"labels= has classes from {least:,} to {most:,}; several of an image are from 0 on")
    if most <= 1:
        if len(counts) == 1:  # as classes, images would name one of the two twice
            return Labels(np.array(numbers, np.uint8), list(map(str, range(counts.pop()))))
        if odd := [i for i, several in enumerate(numbers) if several != sorted({*several})]:
            raise BadSetting(
                f"{where(odd[0])}: the labels {numbers[odd[0]]} are a row of 0 and 1, and other rows have "
                f"{min(counts)} to {max(counts)} of them: give each image as many"
            )
    return _of_several(numbers, list(map(str, range(most + 1))))


def _read_one(label: Any, where: Callable[[int], str], i: int) -> int | str:
    """Return a label as a whole number, or as a name: what is no number, alone or with a ``#`` behind it."""
    found: int | str = label.strip() if isinstance(label, str) else ""
    if isinstance(label, int) or (isinstance(label, float) and label.is_integer()):
        found = int(label)
    elif number := _NUMBER.fullmatch(str(found)):
        value = Decimal(number[1])
        found = int(value) if not number[2] and abs(value) <= _MOST and value == value // 1 else ""
    if found == "" or (isinstance(found, int) and not -_MOST <= found <= _MOST):
        raise BadSetting(f"{where(i)}: the label {label!r} is neither a whole number that int64 holds nor a name")
    return found


def _by_name(labels: list[list[str]], beside: Sequence[str] = ()) -> Labels:
    classes = sorted({*beside, *(label for several in labels for label in several)})
    number = {name: i for i, name in enumerate(classes)}
    numbers = [[number[label] for label in several] for several in labels]
    if all(len(several) == 1 for several in numbers):
        return Labels(np.array(numbers, np.int64)[:, 0], classes)
    return _of_several(numbers, classes)


def _of_several(numbers: list[list[int]], classes: list[str]) -> Labels:
    values = np.zeros((len(numbers), len(classes)), np.uint8)
    for row, several in zip(values, numbers, strict=True):
        row[several] = 1
    return Labels(values, classes)


def _read(path: Path, names: Sequence[str], line_of: dict[str, int]) -> dict[str, list[str]]:
    """Read a file of labels, and in which line each stands; fields are parted by what makes most paths known."""
    known = set(names)
    read: list[list[tuple[int, list[str]]]] = []
    try:
        lines = path.read_text("utf-8-sig").splitlines()
        for between in (",", "\t", " "):
            reader = csv.reader(lines, delimiter=between, skipinitialspace=True)
            rows = ((reader.line_num, [field.strip() for field in row]) for row in reader)
            read.append([(line, row) for line, row in rows if any(row)])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadSetting(f"labels={path}: it cannot be read: {error}") from None
    rows = max(read, key=lambda rows: sum(row[0] in known for _, row in rows))
    labels: dict[str, list[str]] = {}
    for line, row in rows:
        if row[0] in labels and row[0] in known:
            raise BadSetting(f"labels={path}: {row[0]} stands in two lines; put all of its labels into one")
        labels[row[0]], line_of[row[0]] = [*filter(None, row[1:])], line
    return labels
