"""``penstock feed``: run a feeder in this terminal."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.console import Console

from penstock.errors import BadSetting, SourceError
from penstock.feed.settings import DEFAULT_WINDOW


def feed(
    loader: Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION", help="The function that makes the loader.")],
    name: Annotated[str, typer.Option(help="Trainers attach to this name.")],
    segments: Annotated[int, typer.Option(help="Parts of a cycle at which a trainer may join.")] = 16,
    seed: Annotated[int, typer.Option(help="Of the order of samples.")] = 0,
    window: Annotated[str, typer.Option(help="Memory for blocks that are on their way.")] = DEFAULT_WINDOW,
    epochs: Annotated[int | None, typer.Option(help="Epochs for each trainer; without end unless given.")] = None,
    linger: Annotated[float | None, typer.Option(help="End so many seconds after the last trainer.")] = None,
    stall_timeout: Annotated[
        float | None, typer.Option(help="Evict a trainer that holds the feed back for so many seconds.")
    ] = None,
    batch_granular: Annotated[
        bool, typer.Option("--batch-granular", help="Batches vary in shape and are taken as they are.")
    ] = False,
    memory: Annotated[str, typer.Option(help="Where blocks lie: host, or a GPU, such as cuda:0.")] = "host",
) -> None:
    """Run a feeder here, until it is interrupted or stopped.

    FUNCTION takes nothing and returns a DataLoader, arrays, or batches.
    """
    from penstock.feed.feeder import Feeder
    from penstock.feed.process import serve

    console = Console()
    feeder = Feeder(
        _call(loader),
        name,
        segments=segments,
        seed=seed,
        window=window,
        epochs=epochs,
        linger=linger,
        stall_timeout=stall_timeout,
        batch_granular=batch_granular,
        memory=memory,
    )
    stands = feeder.statistics()
    console.print(
        f"Feeding [bold]{name}[/] from {stands.source}, window {stands.window_bytes >> 20} MiB, "
        f"{stands.segments} segments. Attach with [bold]penstock.attach({name!r})[/]; Ctrl-C ends it.",
        highlight=False,
    )
    try:
        serve(feeder)
    except KeyboardInterrupt:
        console.print("Interrupted; the trainers have been told.")
    except SourceError as error:
        if error.traceback_text:
            Console(stderr=True).print(error.traceback_text, markup=False, highlight=False)
        raise


def _call(where: str) -> Any:
    path, _, function = where.rpartition(":")
    if not path or not function.isidentifier():
        raise BadSetting(f"{where!r} names no function: write FILE.py:FUNCTION, such as train.py:make_loader")
    module = _module(Path(path))
    make = getattr(module, function, None)
    if not callable(make):
        named = sorted(
            name for name, thing in vars(module).items() if callable(thing) and thing.__module__ == module.__name__
        )
        raise BadSetting(f"{path} has no function {function!r}; it has: {', '.join(named) or 'none'}")
    return make()


def _module(path: Path) -> ModuleType:
    if not path.is_file():
        raise BadSetting(f"there is no file {path}")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise BadSetting(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # workers find the dataset's class by this name
    spec.loader.exec_module(module)
    return module
