"""``penstock feed``: run a feeder in this terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from penstock.basics.sizes import size_text
from penstock.basics.terminal import console, printable
from penstock.cli import INTERRUPTED
from penstock.cli.cache import cache_of
from penstock.errors import BadSetting
from penstock.feed.launch.function import call, function_at
from penstock.feed.settings import DEFAULT_WINDOW
from penstock.sources.adapt import PACKED
from penstock.sources.seeds import seed_process

if TYPE_CHECKING:
    from penstock.sources.images.source import ImageSource
    from penstock.sources.packed import PackedSource
    from penstock.sources.tokens import TokenSource

_IMAGES = "images:"
_TOKENS = "tokens:"
_PACKED_PANEL = "Options of packed:FOLDER"
_TOKENS_PANEL = "Options of tokens:FILES"
_IMAGES_PANEL = "Options of images:FOLDER"
_BOTH_PANEL = "Options of images:, packed: and tokens:"
_OPTIONS = {
    _IMAGES: {"size", "augment", "labels", "on_bad", "workers", "batch_size", "shuffle", "cache"},
    PACKED: {"reader", "cache", "batch_size", "depth", "shuffle", "verify"},
    _TOKENS: {"length", "batch_size", "documents", "dtype", "shuffle", "cache"},
}
"""Which options the loaders have that are named by a prefix."""


def feed(
    loader: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:FUNCTION",
            help="Function that makes the loader; images:FOLDER; tokens:FILES, a file, a folder or a pattern "
            "of token files; or packed:FOLDER, made by penstock pack.",
        ),
    ],
    name: Annotated[str, typer.Option(metavar="NAME", help="Name that trainers attach to.")],
    segments: Annotated[
        int | None, typer.Option(help="Parts of a cycle that are shuffled each by itself; one unless given.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the order, and of the workers.")] = 0,
    window: Annotated[str, typer.Option(metavar="SIZE", help="Size of the ring, such as 2GiB.")] = DEFAULT_WINDOW,
    prefetch: Annotated[
        int | None, typer.Option(help="Batches kept ready for the fastest trainer; by size unless given.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs for each trainer; endless unless given.")] = None,
    linger: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Time from the last trainer's end to the feed's; endless unless given."
        ),
    ] = None,
    stall_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Time for which a trainer may hold the feed back before it is evicted; no limit unless given.",
        ),
    ] = None,
    whole_batches: Annotated[
        bool, typer.Option("--whole-batches", help="Whole batches of the loader, whose shapes may vary.")
    ] = False,
    memory: Annotated[str, typer.Option(help="Place of the ring: host, or a GPU, such as cuda:0.")] = "host",
    expect: Annotated[
        int, typer.Option(metavar="K", help="Trainers for which the first cycle waits, for at most 9 s.")
    ] = 1,
    batch_size: Annotated[
        int | None, typer.Option(help="Rows of a block; 128 unless given.", rich_help_panel=_BOTH_PANEL)
    ] = None,
    shuffle: Annotated[
        bool | None,
        typer.Option(
            "--shuffle/--in-order", help="Order of the rows; shuffled unless given.", rich_help_panel=_BOTH_PANEL
        ),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER=SIZE",
            help="Local folder that keeps what was read, such as /scratch/cache=200GB.",
            rich_help_panel=_BOTH_PANEL,
        ),
    ] = None,
    reader: Annotated[
        str | None,
        typer.Option(help="Way of reading rows: auto, posix, direct, uring, gpu.", rich_help_panel=_PACKED_PANEL),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(help="Reads under way; 128, or as advised, unless given.", rich_help_panel=_PACKED_PANEL),
    ] = None,
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify",
            help="Comparison of rows with their checksums; done unless given.",
            rich_help_panel=_PACKED_PANEL,
        ),
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Side in pixels; 224 unless given.", rich_help_panel=_IMAGES_PANEL)
    ] = None,
    augment: Annotated[
        str | None,
        typer.Option(
            help="rrc: random crops, half of them mirrored (the default); center: the middle; whole: all of it; "
            "padded: all of it, shifted and mirrored at random.",
            rich_help_panel=_IMAGES_PANEL,
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A path and its labels in each line; the class folders unless given.",
            rich_help_panel=_IMAGES_PANEL,
        ),
    ] = None,
    on_bad: Annotated[
        str | None,
        typer.Option(
            help="fail: a bad image ends the feed (the default); skip: it comes black, with label -100.",
            rich_help_panel=_IMAGES_PANEL,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes that decode; one on each core unless given.", rich_help_panel=_IMAGES_PANEL),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(help="Tokens that a row predicts; it has one more.", rich_help_panel=_TOKENS_PANEL),
    ] = None,
    documents: Annotated[
        str | None,
        typer.Option(
            help="split: one document in a row; packed: as many as fit; windows of the stream unless given.",
            rich_help_panel=_TOKENS_PANEL,
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Type of tokens without a header: uint16 or uint32.", rich_help_panel=_TOKENS_PANEL),
    ] = None,
) -> None:
    """Run a feeder here, until it is interrupted or stopped.

    FUNCTION takes no arguments and returns a DataLoader, arrays, or batches.
    """
    from penstock.feed.feeder.feeder import Feeder
    from penstock.feed.launch.process import serve

    shown = console()
    options = {
        "batch_size": batch_size,
        "shuffle": shuffle,
        "reader": reader,
        "depth": depth,
        "verify": verify,
        "size": size,
        "augment": augment,
        "labels": labels,
        "on_bad": on_bad,
        "workers": workers,
        "length": length,
        "documents": documents,
        "dtype": dtype,
        "cache": None if cache is None else cache_of(cache),
    }
    source = _loader(loader, options, {"segments": segments, "seed": seed})
    feeder = Feeder(
        source,
        name,
        segments=segments,
        seed=seed,
        window=window,
        prefetch=prefetch,
        epochs=epochs,
        linger=linger,
        stall_timeout=stall_timeout,
        whole_batches=whole_batches,
        memory=memory,
        expect=expect,
    )
    stands = feeder.statistics()
    shown.print(
        Text.assemble(
            "Feeding ",
            (printable(name), "bold"),
            f" from {printable(stands.source)}, window {size_text(stands.window_bytes)}",
            "" if stands.segments == 1 else f", {stands.segments:,} segments",
            ". Ctrl-C ends it. Attach with\n    ",
            (f"penstock.attach({name!r})", "bold"),
        ),
        soft_wrap=True,
    )
    if loader.startswith(tuple(_OPTIONS)):
        for note in _notes(source, segments, stands.window_bytes):
            shown.print(note, style="yellow", soft_wrap=True)
    try:
        serve(feeder)
    except KeyboardInterrupt:
        shown.print("Interrupted; the trainers have been told.")
        raise typer.Exit(INTERRUPTED) from None


def _loader(where: str, options: dict[str, Any], settings: dict[str, Any]) -> Any:
    """Make what to feed; ``options`` are those that only some loaders have."""
    given = {name: value for name, value in options.items() if value is not None}
    prefix = next((prefix for prefix in _OPTIONS if where.startswith(prefix)), "")
    if others := given.keys() - _OPTIONS.get(prefix, set()):
        names = ", ".join("--" + name.replace("_", "-") for name in given if name in others)
        having = " or ".join(f"{known}..." for known, own in _OPTIONS.items() if others & own)
        raise BadSetting(f"{names}: only for {having}; {where} has its own")
    path = os.path.expanduser(where.removeprefix(prefix))
    if prefix in (_IMAGES, _TOKENS) and not path:
        raise BadSetting(f"{where} names nothing: write {prefix}PATH")
    if prefix == PACKED:
        from penstock.sources.packed import PackedSource

        return PackedSource(path, **given, **settings)
    if prefix == _IMAGES:
        from penstock.sources.images.source import ImageSource

        return ImageSource(path, **given, **settings)
    if prefix == _TOKENS:
        from penstock.sources.tokens import TokenSource

        if length := given.pop("length", 0):
            return TokenSource(path, length=length, **given, **settings)
        raise BadSetting(f"{where}: say how many tokens a row predicts, such as --length 1024")
    if f"{where}:" == PACKED or Path(where).is_dir():
        folder = "FOLDER" if f"{where}:" == PACKED else where
        raise BadSetting(
            f"{where!r} names no function; to feed what penstock pack has made, write {PACKED}{folder}"
        )
    seed_process(settings["seed"])  # a list that FUNCTION shuffles has one order in every feeder
    return call(function_at(where), where)


def _notes(
    source: ImageSource | PackedSource | TokenSource, segments: int | None, window_bytes: int
) -> Iterator[str]:
    """Say what of the settings such a data set cannot have."""
    from penstock.feed.feeder.slot_pool import RING_SHARE

    if segments is not None and source.batches < segments:
        yield (
            f"{_counted(source.batches, 'segment')}, not {segments}: {source.samples:,} samples make "
            f"{_counted(source.batches, 'block')} of up to {source.batch_size:,}. With a smaller --batch-size "
            "there are more."
        )
    if not window_bytes // RING_SHARE // source.slot_bytes:
        yield (
            f"The window is too small to read ahead, so each block is copied into it: 1/{RING_SHARE} of it is for "
            f"reading ahead, and a block takes {size_text(source.block_bytes)}. "
            f"--window {-(-source.slot_bytes * 16 >> 20)}MiB holds sixteen."
        )


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + "s" * (count != 1)
