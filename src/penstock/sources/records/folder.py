"""A folder whose files are samples, in folders of classes or not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from penstock.contracts import Ids, Place
from penstock.errors import BadSetting


class FolderRecords:
    """A folder's files, and those of folders below, in ImageFolder's order. Attributes are those of ``Records``.

    Args:
        folder: The folder.
        suffixes: Endings of files that are samples, in small letters; others are left out.

    Raises:
        BadSetting: there is no such folder, or nothing in it.
    """

    def __init__(self, folder: str | Path, suffixes: Sequence[str]) -> None:
        self.root = os.path.abspath(os.path.expanduser(folder))
        if not os.path.isdir(self.root):
            if os.path.exists(self.root):
                raise BadSetting(f"{folder} is neither a folder nor a tar file (.tar): unpack it first")
            raise BadSetting(f"{folder}: there is no such folder; tar files end in .tar")
        self.labels: Sequence[str] = ()
        self.names, self.classes = in_order(_folders(self.root), suffixes)
        if not self.names:
            raise BadSetting(
                f"{folder}: no files in it, or in folders below, end in {', '.join(sorted(suffixes))}"
            )
        self.description = f"{len(self.names):,} files of {self.root}"

    def places(self, records: Ids) -> list[Place]:
        chosen: list[int] = records.tolist()
        return [Place(os.path.join(self.root, self.names[record])) for record in chosen]

    def check_unchanged(self, records: Ids) -> None:
        """A file that was replaced is another image, whole."""


def in_order(folders: Iterable[tuple[str, list[str]]], suffixes: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return paths of files in the order of torchvision's ``make_dataset``, and all names of classes.

    That is class by class, in each by the folder's path, and in each folder by name; hidden ones are like others.

    Args:
        folders: Path of each folder, empty for the uppermost, with the names of its files.
        suffixes: Endings of files that are wanted, in small letters.
    """
    ordered = sorted((folder.split("/", 1)[0], folder, sorted(files)) for folder, files in folders)
    names = [f"{folder}/{name}".lstrip("/") for _, folder, files in ordered for name in files]
    endings = tuple(suffixes)
    return [name for name in names if name.lower().endswith(endings)], sorted({of for of, _, _ in ordered if of})


def _folders(top: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the path within ``top`` of each folder, and its files; links are followed.

    Raises:
        BadSetting: a folder cannot be listed, or links lead round in a circle.
    """
    above: dict[str, set[tuple[int, int]]] = {}  # of each folder: those on its path

    def refuse(error: OSError) -> None:
        raise BadSetting(f"{error.filename} cannot be listed: {error.strerror}")

    for folder, _, files in os.walk(top, followlinks=True, onerror=refuse):
        status = os.stat(folder)
        me, on_path = (status.st_dev, status.st_ino), above.get(os.path.dirname(folder), set())
        if me in on_path:
            raise BadSetting(
                f"{folder} is a link to a folder that it lies in: its images would come again and again"
            )
        above[folder] = on_path | {me}
        yield folder[len(top) :].lstrip("/"), files
