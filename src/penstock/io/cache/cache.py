"""A cache, as a user gives it."""

from __future__ import annotations

from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Literal, cast

import msgspec

from penstock.basics.sizes import check_one_of, size_from
from penstock.errors import BadSetting
from penstock.io.cache.folder import CacheFolder, reads_direct
from penstock.io.cache.tiers import CacheLayout, Files, memory_files

KEEPS = ("auto", "bytes", "pixels")


class Cache:
    """Keeps samples that are far away, or dear to decode, in a folder and in memory.

    A sample that was kept stays: if the data are larger than the cache, the same part of them is found in every
    cycle. All feeds may use one folder; to make room, whole data sets are dropped that nobody reads, the one that
    was opened longest ago first. It may be deleted, or its processes killed, at any time.

    Args:
        folder: Folder on a local disk; ``penstock cache`` shows what is in it.
        size: Most bytes in the folder, of all data sets together: ``"200GB"``.
        memory: Most bytes in memory, which last as long as the feed; 0 for none.
        keep: ``"bytes"`` as they are stored; ``"pixels"``, which take more room and need not be decoded again; or
            ``"auto"``: what makes later cycles faster here, measured in the first.
        shared: Whether others of the folder's group may use it, too. They can write to it, so trust them.
        node: Name of this machine, if several share what they keep.
        others: Cache folders of the other machines as this one sees them, by their names. Each machine keeps its
            part of the samples, and reads the others' parts from them.

    Raises:
        BadSetting: the folder cannot be used, or an argument is out of range.

    Examples:
        >>> cache = penstock.Cache("cache", "1GiB", memory="100MiB", keep="pixels")
        >>> source = penstock.ImageSource("photos", size=32, batch_size=2, cache=cache)
    """

    def __init__(
        self,
        folder: str | Path,
        size: int | str,
        *,
        memory: int | str = 0,
        keep: Literal["auto", "bytes", "pixels"] = "auto",
        shared: bool = False,
        node: str = "",
        others: Mapping[str, str | Path] | None = None,
    ) -> None:
        asked = cast("object", folder)
        if not isinstance(asked, (str, Path)) or not str(asked) or "://" in str(asked):
            raise BadSetting(f"folder={folder!r}: give a folder on a local disk")
        if others is not None and not isinstance(cast("object", others), Mapping):
            raise BadSetting(f"others={others!r}: give a dict of the other machines' folders by their names")
        check_one_of("keep", keep, KEEPS)
        if others and not node:
            raise BadSetting("others= names other machines; node= must name this one, as they name it")
        if node in (others or {}):
            raise BadSetting(f"others= has a folder for {node}, which is this machine's own name")
        self.limit = size_from("size", size)
        self.memory_bytes = 0 if memory in (0, "0") else size_from("memory", memory)
        self.keep = keep
        self.folder = str(CacheFolder(folder, self.limit, shared=shared).path)
        self._layout = CacheLayout(
            root="",
            kind="",
            folder=self.folder,
            limit=self.limit,
            shared=shared,
            memory_bytes=self.memory_bytes,
            node=node,
            others={name: str(other) for name, other in (others or {}).items()},
        )

    @staticmethod
    def check(cache: object) -> None:
        """Raise BadSetting if ``cache=`` is something else."""
        if cache is not None and not isinstance(cache, Cache):
            raise BadSetting(f"cache={cache!r}: give penstock.Cache(folder, size)")

    def refuse_pixels(self, what: str) -> None:
        """Raise BadSetting if pixels are to be kept of what has none."""
        if self.keep == "pixels":
            raise BadSetting(f'keep="pixels": {what} are kept as they are; leave keep out')

    @property
    def is_direct(self) -> bool:
        """Whether the folder is read past the kernel's page cache, which it does not fit."""
        return reads_direct(self.limit)

    def open_memory(self) -> tuple[Files | None, list[FileIO]]:
        """Make the files of a slab in memory, if the cache has one; they last while somebody has them open."""
        files = list(memory_files()) if self.memory_bytes else []
        return Files(*(file.fileno() for file in files)) if files else None, files

    def layout(self, root: str, kind: str, memory: Files | None) -> CacheLayout:
        """Return where samples of a data set are kept."""
        return msgspec.structs.replace(self._layout, root=root, kind=kind, memory=memory)
