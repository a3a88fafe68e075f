"""The sharing benchmark; the same as ``penstock bench share``.

python benchmarks/share.py --data FOLDER --json benchmarks/results/share-NAME.json --plot share.png
"""

from __future__ import annotations

import sys

import typer

from penstock.cli.bench import share
from penstock.errors import PenstockError

if __name__ == "__main__":
    try:
        typer.run(share)
    except PenstockError as error:
        sys.exit(str(error))
