"""The verbs of ``penstock runs`` that change runs: note, stop, rm, restore, prune."""

from __future__ import annotations

import re
from typing import Annotated

from penstock.basics.sizes import size_from, size_text
from penstock.basics.terminal import printable
from penstock.cli.command import AsJson, StoreFolder, argument, counted, option
from penstock.cli.command import show as show_or_json
from penstock.cli.runs_words import Named, words
from penstock.errors import BadSetting, NoSuchRun
from penstock.runs.record import ENDED
from penstock.runs.store import Store
from penstock.runs.store.folder import Removed

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def note(
    named: Named,
    text: Annotated[str | None, option("What is worth knowing of them.", metavar="TEXT")] = None,
    tag: Annotated[list[str] | None, option("A word to find them again; repeatable.", metavar="WORD")] = None,
    untag: Annotated[list[str] | None, option("A tag that they lose; repeatable.", metavar="WORD")] = None,
    archive: Annotated[
        bool | None, option("--archive/--unarchive", "Whether lists leave them out from now on.")
    ] = None,
    as_json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """Write a note or tags to runs, or archive them."""
    from penstock.cli.runs_table import runs_table
    from penstock.runs.store.notes import Change

    change = Change(note=text, tag=tuple(tag or ()), untag=tuple(untag or ()), archived=archive)
    if change == Change():
        raise BadSetting("give --text, --tag, --untag, --archive or --unarchive")
    with Store.open(store, to_read=True) as opened:
        changed = opened.annotate([run.id for run in opened.named(named)], change)
    show_or_json(as_json, [run.fields for run in changed], lambda: runs_table(changed, {}))


def restore(
    named: Annotated[
        list[str] | None, argument("[RUN|GROUP...]", "Whole ids of runs, names or ids of groups.")
    ] = None,
    as_json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """Bring back runs that were deleted on the page less than a week ago; list them, unless some are named."""
    from penstock.cli.runs_table import runs_table

    with Store.open(store, to_read=True) as opened:
        found = opened.runs(deleted=True)
        if named:
            names = {name for run in found for name in (run.id, run.group, run.group_id)}
            if missing := sorted(set(named) - names):
                raise NoSuchRun(f"no run or group {missing[0]!r} was deleted; `penstock runs restore` lists all")
            found = opened.restore([run.id for run in found if {run.id, run.group, run.group_id} & set(named)])
    none = "No run was deleted on the page within a week."
    show_or_json(as_json, [run.fields for run in found], lambda: runs_table(found, {}) if found else none)


def stop(named: Named, as_json: AsJson = False, store: StoreFolder = None) -> None:
    """End runs, wherever they were started: SIGTERM, and SIGKILL 5 s later."""
    from penstock.runs.stop import stop as end

    with Store.open(store, to_read=True) as opened:
        ended = end(opened, [run.id for run in opened.named(named)])
    done = [{"id": now.id, "name": now.name, "before": was.status, "status": now.status} for was, now in ended]
    already = ["had ended already: " * (was.status in ENDED) for was, _ in ended]
    lines = [f"Run {now.id} ({now.name}): {so}{now.status}." for so, (_, now) in zip(already, ended, strict=True)]
    show_or_json(as_json, done, lambda: "\n".join(lines))


def rm(
    named: Annotated[list[str], words("RUN|GROUP...", "Ids of runs that have ended, names or ids of groups.")],
    force: Annotated[
        bool, option("--force", "Also remove runs of other machines or containers, though they may still go on.")
    ] = False,
    as_json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """Remove runs and their files from the store."""
    with Store.open(store, to_read=True) as opened:
        _print_removed(opened.remove([run.id for run in opened.named(named)], force=force), as_json)


def prune(
    keep: Annotated[str | None, option("Remove runs that ended longer ago: 90d, 12h, 2w.", metavar="AGE")] = None,
    most: Annotated[str | None, option("--max", "Disk space that runs may take: 20GB.", metavar="SIZE")] = None,
    dry_run: Annotated[bool, option("--dry-run", "Remove nothing; list what would be removed.")] = False,
    as_json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """Remove old runs that have ended."""
    if keep is None and most is None:
        raise BadSetting("give --keep, such as 90d, or --max, such as 20GB, or both")
    keep_s = None if keep is None else _seconds_from(keep)
    max_bytes = None if most is None else size_from("--max", most)
    with Store.open(store, to_read=True) as opened:
        _print_removed(opened.prune(keep_s=keep_s, max_bytes=max_bytes, dry_run=dry_run), as_json, dry_run)


def _print_removed(removed: list[Removed], as_json: bool, dry_run: bool = False) -> None:
    lines = [
        f"{run.id}  {printable(run.name)} of {printable(run.group)}, {run.status}, {size_text(nbytes)}"
        for run, nbytes in removed
    ]
    count, freed = counted(len(removed), "run"), size_text(sum(nbytes for _, nbytes in removed))
    lines.append(f"{count} would be removed: {freed}." if dry_run else f"{count} removed: {freed} are free again.")
    rows = [run.fields | {"bytes": nbytes, "removed": not dry_run} for run, nbytes in removed]
    show_or_json(as_json, rows, lambda: "\n".join(lines))


def _seconds_from(age: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", age)
    if not match:
        raise BadSetting(f"--keep {age!r}: give a number with s, m, h, d or w, such as 90d")
    return float(match[1]) * _SECONDS[match[2]]
