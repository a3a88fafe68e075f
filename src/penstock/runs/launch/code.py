"""The code that a run's script consists of, as far as it lies in the script's folder: git may not know it."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from penstock.runs.masking import masked

MOST_BYTES = 1_000_000
"""Texts of a run's files are kept up to this size in all; of others the digest alone."""
_MOST_FILES = 500


def code_of(script: str, directory: str) -> dict[str, dict[str, str]]:
    """Return the script and what it imports from its folder, directly or not, by path there.

    Each file has ``digest`` (SHA-256) and ``text``, masked, and empty if all are too large to be kept.
    """
    path, found, left = Path(directory, script), dict[str, dict[str, str]](), MOST_BYTES
    for file, content in files_of(path).items():
        with suppress(UnicodeDecodeError):
            text = content.decode()
            left -= len(content)
            found[str(file.relative_to(path.parent))] = {
                "digest": hashlib.sha256(content).hexdigest(),
                "text": masked(text) if left >= 0 else "",
            }
    return found


def files_of(script: Path) -> dict[Path, bytes]:
    """Return what a script and the files that it imports from its folder hold; nothing if it is not there."""
    found, waiting = dict[Path, bytes](), [script]
    while waiting and len(found) < _MOST_FILES:
        path = waiting.pop(0)
        if path not in found:
            with suppress(OSError):
                found[path] = path.read_bytes()
                waiting += _imported(found[path], path, script.parent)
    return found


def _imported(content: bytes, path: Path, folder: Path) -> Iterator[Path]:
    """Yield the files below a folder that a file imports, wherever in it."""
    try:
        nodes = [*ast.walk(ast.parse(content))]
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [(folder, each.name) for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = path.parents[node.level - 1] if 0 < node.level <= len(path.parents) else folder
            module = node.module or ""
            names = [(base, module), *((base, f"{module}.{each.name}".strip(".")) for each in node.names)]
        else:
            continue
        for base, name in names:
            parts = name.split(".") if name else []
            for upto in range(len(parts) + 1):
                for file in (
                    base.joinpath(*parts[:upto], "__init__.py"),
                    base.joinpath(*parts[:upto]).with_suffix(".py"),
                ):
                    if file.is_relative_to(folder) and file != folder / "__init__.py" and file.is_file():
                        yield file
