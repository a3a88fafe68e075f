"""What the scripts that write and read with an original have in common; it needs nothing but Python."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main(
    write: Callable[[str, dict[str, str], list[dict[str, Any]], dict[str, Any]], None],
    read: Callable[[str], list[dict[str, Any]]],
) -> None:
    """Run ``write FOLDER FILE [KEY=VALUE]``, of a pickle of kinds and samples, or ``read FOLDER FILE``, to one."""
    what, folder, file, *more = sys.argv[1:]
    if what == "write":
        kinds, samples = pickle.loads(Path(file).read_bytes())
        write(folder, kinds, samples, dict(word.split("=") for word in more))
    else:
        Path(file).write_bytes(pickle.dumps(read(folder), protocol=4))
