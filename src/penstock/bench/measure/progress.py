"""The progress that a benchmark shows while it runs."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Tell = Callable[[int, int, str], None]
"""Called with (cases done, cases in all, the case that comes now)."""


@contextmanager
def progress(console: Console) -> Generator[Tell]:
    """Show a bar on a terminal, which is gone at the end."""
    columns = [TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()]
    quiet = not console.is_terminal
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task("starting", total=None)

        def tell(done: int, in_all: int, what: str) -> None:
            bar.update(task, completed=done, total=in_all, description=what)

        yield tell
