"""``python -m penstock.demo``: the same as ``penstock demo``."""

from __future__ import annotations

import sys

import typer

from penstock.cli.demo import demo
from penstock.errors import PenstockError


def main() -> None:
    """Run the demo; what goes wrong is told in one line."""
    try:
        typer.run(demo)
    except PenstockError as error:
        print(f"penstock: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
