"""Labels of images: from the folders that they lie in, or from a file or a dict."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from penstock.errors import BadSetting

_SHOWN = 3


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
        return _numbered([[folder] for folder in folders])
    if not isinstance(given, (str, Path, Mapping)):
        if len(given) != len(names):
            raise BadSetting(f"labels= has {len(given):,} labels for {len(names):,} images")
        return _numbered([_several(label) for label in given])
    told = given if isinstance(given, Mapping) else _read(Path(given))
    if missing := [name for name in names if name not in told]:
        raise BadSetting(
            f"labels= has none for {len(missing):,} of {len(names):,} images, such as "
            f"{', '.join(missing[:_SHOWN])}: paths are those within the folder"
        )
    return _numbered([_several(told[name]) for name in names])


def _several(label: Any) -> list[Any]:
    return [label] if isinstance(label, str) or not isinstance(label, Iterable) else [*cast(Any, label)]


def _numbered(labels: list[list[Any]]) -> Labels:
    """Number the classes: whole numbers stay as they are, names are sorted."""
    every = {label for several in labels for label in several}
    whole = all(str(label).isdecimal() for label in every)
    classes = list(map(str, range(1 + max(map(int, every), default=-1)))) if whole else sorted(map(str, every))
    number = {name: i for i, name in enumerate(classes)}
    rows = [[number[str(int(label) if whole else label)] for label in several] for several in labels]
    if all(len(row) == 1 for row in rows):
        return Labels(np.array(rows, np.int64)[:, 0], classes)
    values = np.zeros((len(rows), len(classes)), np.uint8)
    for row, several in zip(values, rows, strict=True):
        row[several] = 1
    return Labels(values, classes)


def _read(path: Path) -> dict[str, list[str]]:
    """Read a file of labels."""
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"labels={path}: it cannot be read: {error}") from None
    between = next((each for each in (",", "\t") if lines and each in lines[0]), " ")
    rows = csv.reader(lines, delimiter=between, skipinitialspace=True)
    return {row[0]: [label for label in row[1:] if label] for row in rows}
