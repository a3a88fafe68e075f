"""Scores: a number for each sample, with their origin and their cost."""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from penstock._version import __version__
from penstock.basics.packages import require
from penstock.basics.terminal import listed
from penstock.basics.tracebacks import users_stacklevel
from penstock.contracts import Ids
from penstock.errors import BadSetting
from penstock.linux.files import written_whole
from penstock.runs.inside.run import current_run
from penstock.runs.store.folder import chosen_folder
from penstock.select.identity import FORMAT, ScoresHeader, identity_of

_HEADER = b"penstock.scores"
_NOTED = "scores-"
_CLASS = "class"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")


class Scores:
    """A score for each of some samples, or one for each of several targets.

    Args:
        ids: Ids of the samples, rising, shape ``(n,)``.
        values: Their scores, shape ``(n,)``, or ``(n, targets)``.
        header: What they were computed from; ``ids_digest`` is filled in.
        classes: The class of each sample, shape ``(n,)``, where there are some: a choice that loses one warns.

    Attributes:
        ids: As given, int64.
        values: As given, float32, shape ``(n, max(1, targets))``.
        classes: As given.
        header: As given, with the digest of the ids.

    Raises:
        BadSetting: shapes differ, or a score is not a number.

    Examples:
        >>> reported = penstock.select.ReportedLosses(3)
        >>> reported.report([0, 1, 2], [0.5, 0.25, 1.0])
        >>> path = reported.scores().save(Path("losses.parquet").resolve())
        >>> penstock.select.Scores.read(path).ids.tolist()
        [0, 1, 2]
    """

    def __init__(
        self,
        ids: Ids,
        values: npt.ArrayLike,
        header: ScoresHeader,
        classes: Ids | None = None,
    ) -> None:
        self.ids = np.asarray(ids, np.int64)
        given = np.asarray(values, np.float32)
        columns = max(1, len(header.targets))
        if given.size != len(self.ids) * columns or given.shape[:1] != self.ids.shape:
            raise BadSetting(
                f"scores of shape {given.shape} for {len(self.ids):,} samples and {columns} "
                f"target{'s' * (columns > 1)}"
            )
        if (np.diff(self.ids) <= 0).any() or (self.ids[:1] < 0).any():
            raise BadSetting("ids: they must rise, from 0 or more, each once")
        self.values = given.reshape(len(self.ids), columns)
        if not np.isfinite(self.values).all():
            rows = np.flatnonzero(~np.isfinite(self.values).all(1))
            raise BadSetting(
                f"scores by {header.method}: {len(rows):,} of {len(self.ids):,} samples have none that is a "
                f"number, the first is id {self.ids[rows[0]]:,}. Has the model diverged, or does a sample hold "
                "what is no number?"
            )
        self.classes = classes
        self.header = msgspec.structs.replace(header, ids_digest=_digest(self.ids))

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"<penstock.select.Scores of {len(self):,} samples by {self.header.method}>"

    @property
    def worth(self) -> npt.NDArray[np.float32]:
        """The scores such that higher ones are worth more, shape ``(n, max(1, targets))``."""
        return self.values if self.header.direction == "high" else -self.values

    def check(self, data: Any) -> Self:
        """Return these scores, if they are of a data set.

        All samples are read and compared, where that takes seconds. A warning names what could not be compared:
        images that are augmented, or all but 64 samples.

        Args:
            data: A map-style data set.

        Raises:
            BadSetting: they are of another one; the message says what differs.
        """
        now = identity_of(data)
        if differs := self.header.data.difference(now):
            raise BadSetting(
                f"these scores by {self.header.method} are of other data: {differs}. Score this data set, or "
                "train on that one"
            )
        if uncompared := self.header.data.uncompared(now):
            warnings.warn(
                f"these scores by {self.header.method} may be of other data: {uncompared}",
                stacklevel=users_stacklevel(),
            )
        return self

    def save(self, where: str | os.PathLike[str]) -> Path:
        """Write them to a Parquet file.

        Args:
            where: A path that ends in ``.parquet``, or a name, such as ``tweets/less``, under which every
                process of this user finds them.

        Raises:
            BadSetting: the name is none, or the file cannot be written.
            PackageMissing: pyarrow is not installed.
        """
        pyarrow, parquet = _parquet()
        path = path_of(where)
        room_for(path)
        columns: dict[str, Any] = {"id": self.ids}
        columns |= {name: self.values[:, i] for i, name in enumerate(_columns(self.header.targets))}
        if self.classes is not None:
            columns[_CLASS] = self.classes
        table = pyarrow.table(columns).replace_schema_metadata({_HEADER: msgspec.json.encode(self.header)})
        try:
            with written_whole(path) as half:
                parquet.write_table(table, half)
        except OSError as error:
            raise BadSetting(f"{path} cannot be written: {error.strerror or error}") from None
        return path

    @classmethod
    def read(cls, where: str | os.PathLike[str], data: Any = None) -> Self:
        """Read what ``save`` wrote. A run of ``penstock run`` notes that, and the page then shows what it brings.

        Args:
            where: Path or name.
            data: The data set that they are used for; unless given, that is not checked.

        Raises:
            BadSetting: there is no such file, it holds no scores, or they are of other data.
            PackageMissing: pyarrow is not installed.
        """
        pyarrow, parquet = _parquet()
        path = path_of(where)
        try:
            table = parquet.read_table(path, partitioning=None)
        except FileNotFoundError:
            raise BadSetting(_missing(where, path)) from None
        except (OSError, pyarrow.ArrowInvalid) as error:
            raise BadSetting(f"{path} is no Parquet file: {error}") from None
        try:
            metadata: dict[bytes, bytes] = table.schema.metadata or {}
            header = msgspec.json.decode(metadata[_HEADER], type=ScoresHeader)
            columns = {name: table[name].to_numpy() for name in ("id", *_columns(header.targets))}
        except (KeyError, msgspec.DecodeError):
            raise BadSetting(f"{path} holds no scores: penstock select score writes such files") from None
        if header.format == 1 and not header.data.content:
            raise BadSetting(
                f"{path} has scores by an earlier Penstock of a feed, whose images may have other ids now (those "
                "of ImageFolder): score them again"
            )
        if header.format not in (1, FORMAT):
            raise BadSetting(f"{path} has format {header.format}, and penstock {__version__} reads {FORMAT}")
        if "weight" in table.column_names and (table["weight"].to_numpy() != 1).any():
            raise BadSetting(f"{path} has weights, which scores no longer have: repeat its samples instead")
        ids = columns.pop("id")
        if _digest(ids) != header.ids_digest:
            raise BadSetting(
                f"{path}: its rows are not those that were scored: {len(ids):,} ids, or their order, differ"
            )
        classes = table[_CLASS].to_numpy() if _CLASS in table.column_names else None
        scores = cls(ids, np.stack([*columns.values()], axis=1), header, classes)
        if data is not None:
            scores.check(data)
        note_used(path.stem if path == Path(where) else os.fspath(where), header)
        return scores


def path_of(where: str | os.PathLike[str]) -> Path:
    """Return the file of scores that a path or a name means."""
    text = os.fspath(where)
    if text.endswith(".parquet"):
        return Path(text)
    if not _NAME.fullmatch(text):
        raise BadSetting(
            f"{text!r} is no name of scores (letters, digits, - _ . and /), and no path of a .parquet file"
        )
    return folder() / f"{text}.parquet"


def room_for(path: Path) -> None:
    """Make the folder of a file of scores, unless it is there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadSetting(f"{path} cannot be written: {path.parent}: {error.strerror}") from None
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise BadSetting(f"{path} cannot be written: this user may not write to {path.parent}")


def folder() -> Path:
    """Return where named scores lie: ``$PENSTOCK_SCORES``, else ``penstock/scores`` in the user's data."""
    return chosen_folder("PENSTOCK_SCORES", "scores")


def names() -> list[str]:
    """Return the names of all scores that are known by name."""
    return sorted(path.relative_to(folder()).with_suffix("").as_posix() for path in folder().rglob("*.parquet"))


def note_used(name: str, header: ScoresHeader) -> None:
    """Note in the files of the run that this process belongs to which scores it has read; outside, nothing."""
    here = current_run()
    if here is None:
        return
    noted = here.folder / f"{_NOTED}{name.replace('/', '-')}.json"
    with suppress(OSError), written_whole(noted) as half:  # a run is not to fail for a note
        half.write_bytes(msgspec.json.format(msgspec.json.encode(header)))


def used_by(files: Path) -> dict[str, ScoresHeader]:
    """Return the headers of scores that a run has read, by name, from its folder of files."""
    found: dict[str, ScoresHeader] = {}
    for path in sorted(files.glob(f"{_NOTED}*.json")):
        with suppress(OSError, msgspec.DecodeError):  # a file of the script's own may be called so
            name = path.stem.removeprefix(_NOTED)
            found[name] = msgspec.json.decode(path.read_bytes(), type=ScoresHeader)
    return found


def _parquet() -> tuple[Any, Any]:
    require("a file of scores", "columns", "pyarrow")
    return import_module("pyarrow"), import_module("pyarrow.parquet")


def _missing(where: str | os.PathLike[str], path: Path) -> str:
    known = names()
    if (text := os.fspath(where)).endswith(".parquet"):
        name = text.removesuffix(".parquet")
        return f"there is no file {path}" + (f"; there are scores of name {name}" if name in known else "")
    has = f"there are {listed(known, 5)}" if known else "none are kept"
    return f"there are no scores of name {text!r}: {has}"


def _columns(targets: Sequence[str]) -> list[str]:
    return [f"score.{target}" for target in targets] or ["score"]


def _digest(ids: Ids) -> str:
    return hashlib.sha256(np.ascontiguousarray(ids, np.int64).tobytes()).hexdigest()[:16]
