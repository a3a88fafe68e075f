"""``penstock runs note`` and ``restore``: what people say of runs, and those that they deleted on the page."""

from __future__ import annotations

from typing import Annotated, Any

from penstock.cli.command import AsJson, StoreFolder, argument, option
from penstock.cli.command import show as show_or_json
from penstock.cli.runs_words import Named
from penstock.errors import BadSetting, NoSuchRun
from penstock.runs.record import RunRecord
from penstock.runs.store import Store


def fields(run: RunRecord) -> dict[str, Any]:
    """Return what JSON has of a run."""
    names = "id name group group_id index mode status exit_code reason began seconds pid note tags archived"
    return {name: getattr(run, name) for name in names.split()}


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
    show_or_json(as_json, [fields(run) for run in changed], lambda: runs_table(changed, {}))


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
    show_or_json(as_json, [fields(run) for run in found], lambda: runs_table(found, {}) if found else none)
