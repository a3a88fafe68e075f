"""Labels of images: from the folders that they lie in, or from a file or a dict."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from penstock.errors import BadSetting

_SHOWN = 3
_MOST_CLASSES = 10_000_000
_WHOLE = re.compile(r"-?\d+")


class Labels(NamedTuple):
    """What is known of each image.

    Attributes:
        values: A class for each image, int64; or where images have several, or none, a row of 0 and 1 (uint8).
        classes: Names of the classes.
    """

    values: npt.NDArray[Any]
    classes: Sequence[str]


def labels_of(names: Sequence[str], given: str | Path | Mapping[str, Any] | Sequence[Any] | None) -> Labels | None:
    """Find the labels of images; None if they have none.

    Args:
        names: Paths of the images within their folder.
        given: A dict from these paths to a label or a list of labels; a file with a path and its labels in each
            line, between commas, tabs or spaces; a label for each image; None for the folder that it lies in.

    Raises:
        BadSetting: some images have a label, and others have none.
    """
    if given is None:
        folders = [name.split("/", 1)[0] for name in names if "/" in name]
        if not folders:
            return None
        if len(folders) < len(names):
            alone = next(name for name in names if "/" not in name)
            raise BadSetting(
                f"{len(folders):,} images lie in class folders, and {len(names) - len(folders):,} in none, such "
                f"as {alone}: move those into folders, or pass labels="
            )
        return _by_name([[folder] for folder in folders])
    if getattr(given, "ndim", 1) == 2:
        rows: npt.NDArray[Any] = np.asarray(given)
        if len(rows) != len(names) or not np.isin(rows, (0, 1)).all():
            raise BadSetting(
                f"labels= has shape {rows.shape}: give a row of 0 and 1 for each of {len(names):,} images"
            )
        return Labels(rows.astype(np.uint8), list(map(str, range(rows.shape[1]))))
    if not isinstance(given, (str, Path, Mapping)):
        every = list(_listed(given))
        if len(every) != len(names):
            raise BadSetting(f"labels= has {len(every):,} labels for {len(names):,} images")
        return _numbered([_several(label) for label in every])
    told = given if isinstance(given, Mapping) else _read(Path(given), names)
    if missing := [name for name in names if name not in told]:
        raise BadSetting(
            f"labels= has none for {len(missing):,} of {len(names):,} images, such as "
            f"{', '.join(missing[:_SHOWN])}: paths are those within the folder"
        )
    if len(set(names)) < len(names):
        raise BadSetting("labels=: some images have equal paths, so paths do not tell them apart; give a list")
    return _numbered([_several(told[name]) for name in names])


def _listed(given: Any) -> Any:
    """Return labels, one for each image, as Python's own numbers where they are an array's or a tensor's."""
    try:
        return given.tolist() if hasattr(given, "tolist") else iter(given)
    except TypeError:
        raise BadSetting(f"labels={given!r}: give a file, a dict, or a label for each image") from None


def _several(label: Any) -> list[Any]:
    return [label] if isinstance(label, str) or not isinstance(label, Iterable) else [*cast(Any, label)]


def _numbered(labels: list[list[Any]]) -> Labels:
    """Keep whole numbers as they are; number other labels in the order of their names."""
    if any(isinstance(label, (float, np.floating)) for several in labels for label in several):
        raise BadSetting("labels= has numbers that are not whole; labels are classes")
    texts = [[str(label) for label in several] for several in labels]
    if not all(_WHOLE.fullmatch(text) for several in texts for text in several):
        return _by_name(texts)
    numbers = [[int(text) for text in several] for several in texts]
    least, most = min(map(min, filter(None, numbers)), default=0), max(map(max, filter(None, numbers)), default=-1)
    if all(len(several) == 1 for several in numbers):
        classes = list(map(str, range(most + 1))) if 0 <= least and most < _MOST_CLASSES else []
        return Labels(np.array(numbers, np.int64)[:, 0], classes)
    if least < 0 or most >= _MOST_CLASSES:
        raise BadSetting(f"labels= has classes from {least:,} to {most:,}; several of an image are from 0 on")
    if len({len(several) for several in numbers}) == 1 and len(numbers[0]) > 2 and (least, most) == (0, 1):
        raise BadSetting(
            "labels= has rows of 0 and 1: give them as an array of two axes, or the numbers of classes"
        )
    return _of_several(numbers, list(map(str, range(most + 1))))


def _by_name(labels: list[list[str]]) -> Labels:
    classes = sorted({label for several in labels for label in several})
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


def _read(path: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """Read a file of labels; fields are parted by what makes most paths those of images."""
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"labels={path}: it cannot be read: {error}") from None
    known = set(names)
    read = [list(csv.reader(lines, delimiter=between, skipinitialspace=True)) for between in (",", "\t", " ")]
    rows = max(read, key=lambda rows: sum(row[0] in known for row in rows))
    told: dict[str, list[str]] = {}
    for row in rows:
        if row[0] in told and row[0] in known:
            raise BadSetting(f"labels={path}: {row[0]} stands in two lines; put all of its labels into one")
        told[row[0]] = [label for label in row[1:] if label]
    return told
