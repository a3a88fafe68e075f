"""What a run has asked of selections, noted in its own folder: which scores it has read, and what to train on."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.linux.files import written_whole
from penstock.runs.inside.run import current_run
from penstock.select.header import ScoresHeader

_PREFIX = "scores-"
_ASKED = "training-plan-asked"


def note_used(name: str, header: ScoresHeader) -> None:
    """Note in the files of the run that this process belongs to which scores it has read; outside, nothing."""
    here = current_run()
    if here is None:
        return
    noted = here.folder / f"{_PREFIX}{name.replace('/', '-')}.json"
    with suppress(OSError), written_whole(noted) as half:  # a run is not to fail for a note
        half.write_bytes(msgspec.json.format(msgspec.json.encode(header)))


def note_asked() -> None:
    """Note in the files of the run that this process belongs to that it has asked what to train on."""
    here = current_run()
    if here is not None:
        (here.folder / _ASKED).touch()


def has_asked(files: Path) -> bool:
    """Whether a run has asked what to train on, from its folder of files."""
    return (files / _ASKED).exists()


def used_by(files: Path) -> dict[str, ScoresHeader]:
    """Return the headers of scores that a run has read, by name, from its folder of files."""
    found: dict[str, ScoresHeader] = {}
    for path in sorted(files.glob(f"{_PREFIX}*.json")):
        with suppress(OSError, msgspec.DecodeError):  # a file of the script's own may be called so
            name = path.stem.removeprefix(_PREFIX)
            found[name] = msgspec.json.decode(path.read_bytes(), type=ScoresHeader)
    return found
