"""A folder whose files are samples, in folders of classes or not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from penstock.contracts import Ids, Place
from penstock.errors import BadSetting


class FolderRecords:
    """The files of a folder and the folders below it, in order of their paths.

    Args:
        folder: The folder.
        suffixes: Endings of files that are samples, in small letters; others are left out.

    Attributes:
        names: Path of each sample within the folder.
        root: The folder.
        labels: None lie beside them.
        description: The records in a few words, for a person.

    Raises:
        BadSetting: there is no such folder, or nothing in it.
    """

    def __init__(self, folder: str | Path, suffixes: Sequence[str]) -> None:
        self._folder = Path(os.path.abspath(os.path.expanduser(folder)))
        if not self._folder.is_dir():
            raise BadSetting(f"{folder}: there is no such folder")
        self.root = str(self._folder)
        self.labels: Sequence[str] = ()
        self.names = sorted(_files(str(self._folder), tuple(suffixes)))
        if not self.names:
            raise BadSetting(
                f"{folder}: no files in it, or in folders below, end in {', '.join(sorted(suffixes))}"
            )
        self.description = f"{len(self.names):,} files of {self._folder}"

    def places(self, records: Ids) -> list[Place]:
        chosen: list[int] = records.tolist()
        return [Place(os.path.join(self._folder, self.names[record])) for record in chosen]

    def check_unchanged(self, records: Ids) -> None:
        """A file that was replaced is another image, whole."""


def _files(top: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return the paths within ``top`` of its files; links are followed, hidden files and folders left out.

    Raises:
        BadSetting: a folder cannot be listed, or links lead round in a circle.
    """
    found: list[str] = []
    above: dict[str, set[tuple[int, int]]] = {}  # of each folder: those on its path

    def refuse(error: OSError) -> None:
        raise BadSetting(f"{error.filename} cannot be listed: {error.strerror}")

    for folder, folders, files in os.walk(top, followlinks=True, onerror=refuse):
        status = os.stat(folder)
        me, on_path = (status.st_dev, status.st_ino), above.get(os.path.dirname(folder), set())
        if me in on_path:
            raise BadSetting(
                f"{folder} is a link to a folder that it lies in: its images would come again and again"
            )
        above[folder] = on_path | {me}
        folders[:] = [name for name in folders if not name.startswith(".")]
        within = os.path.relpath(folder, top)
        found += (
            os.path.normpath(os.path.join(within, name))
            for name in files
            if name.lower().endswith(suffixes) and not name.startswith(".")
        )
    return found
