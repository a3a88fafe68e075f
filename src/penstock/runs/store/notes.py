"""What people write of runs: a note, tags, and whether lists leave them out."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

import msgspec

from penstock.errors import BadSetting, NoSuchRun

_MOST_NOTE = 10_000
_MOST_TAG = 40
_MOST_TAGS = 30


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be changed of runs."""

    note: str | None = None  # what their note says from now on; None if it stays
    before: str | None = None
    """What it says so far: if another has changed it since, it stays. None for whatever it says."""
    tag: tuple[str, ...] = ()  # tags that they get
    untag: tuple[str, ...] = ()  # tags that they lose
    archived: bool | None = None  # whether lists leave them out; None if that stays


def change_notes(connection: sqlite3.Connection, ids: Iterable[str], change: Change) -> None:
    """Change what is noted of runs, within a transaction."""
    for tag in change.tag:
        if not 0 < len(tag) <= _MOST_TAG or not tag.isprintable() or " " in tag or "," in tag or tag[0] == "-":
            raise BadSetting(
                f"{tag[:99]!r} is no tag: a tag is one word of at most {_MOST_TAG} characters, without spaces and "
                "commas, and does not begin with -"
            )
    note = None if change.note is None else change.note.encode(errors="replace").decode()
    if note is not None and len(note) > _MOST_NOTE:
        raise BadSetting(f"a note has at most {_MOST_NOTE:,} characters, this one {len(note):,}")
    for id in ids:
        row = connection.execute("SELECT note, tags FROM runs WHERE id = ? AND deleted IS NULL", (id,)).fetchone()
        if row is None:
            raise NoSuchRun(f"run {id} has just been removed; nothing was changed")
        was, encoded = row
        if None not in (note, change.before) and was not in (change.before, note):
            raise BadSetting(f"the note of run {id} was changed meanwhile, to {was!r}: save again to replace it")
        before: tuple[str, ...] = msgspec.json.decode(encoded, type=tuple[str, ...])
        tags = [tag for tag in dict.fromkeys((*before, *change.tag)) if tag not in change.untag]
        if len(tags) > _MOST_TAGS:
            raise BadSetting(f"run {id} would have {len(tags)} tags: at most {_MOST_TAGS}")
        connection.execute(
            "UPDATE runs SET note = coalesce(?, note), tags = ?, archived = coalesce(?, archived) WHERE id = ?",
            (note, msgspec.json.encode(tags).decode(), change.archived, id),
        )
