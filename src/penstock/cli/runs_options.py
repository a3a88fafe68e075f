"""Options and output that the verbs of ``penstock runs`` have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

StoreFolder = Annotated[
    Path | None,
    typer.Option("--store", metavar="DIR", help="Folder of the store; $PENSTOCK_STORE unless given."),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead.")]


def print_json(value: Any) -> None:
    """Print a value; NaN and infinities, which JSON lacks, become null."""
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
