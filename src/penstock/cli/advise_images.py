"""``penstock advise --images``: what decodes images here, and what a cache would bring."""

from __future__ import annotations

import tempfile

from rich.table import Table

from penstock.basics.sizes import size_text
from penstock.basics.terminal import console, printable
from penstock.cli.cache import cache_of
from penstock.contracts import Cursor
from penstock.io.cache.cache import Cache
from penstock.sources.images.source import ImageSource

_MEASURED = 512
_ROOM_FOR_ALL = "1000TB"


def advise_images(images: str, cache: str | None) -> None:
    """Measure some images, and print what is expected of each thing that a cache may keep.

    Args:
        images: Folder, tar files or URL.
        cache: ``FOLDER=SIZE``; None for a cache with room for all.
    """
    shown, source, seen = console(), ImageSource(images, batch_size=32), 0
    try:
        with shown.status("decoding some images"):
            for block in source.open(Cursor(0, 0)):
                seen += block.rows
                if seen >= _MEASURED:
                    break
        costs = source.costs
        if cache is None:
            with tempfile.TemporaryDirectory() as folder:
                choices = source.choices(Cache(folder, _ROOM_FOR_ALL))
        else:
            choices = source.choices(cache_of(cache))
        told = source.description
    finally:
        source.close()
    took = {"reading": costs.read_s, "decoding": costs.decode_s, "the rest": costs.finish_s}
    milliseconds = ", ".join(f"{what} {1000 * seconds:.2f} ms" for what, seconds in took.items())
    shown.print(printable(told), soft_wrap=True, markup=False)
    shown.print(
        f"An image of {size_text(round(costs.nbytes))}, {size_text(round(costs.pixel_bytes))} decoded, takes a "
        f"worker: {milliseconds} (measured here, {min(seen, source.samples):,} images).",
        soft_wrap=True,
        highlight=False,
    )
    if "whole images" in source.decoder:
        shown.print(
            "Regions would take a fifth to a third less CPU time: penstock doctor says how to get them.",
            soft_wrap=True,
        )
    table = Table(box=None, pad_edge=False)
    for heading in ("a cache keeps", "of the images", "takes", "images/s from the second epoch on"):
        table.add_column(heading, justify="left" if heading == "a cache keeps" else "right")
    table.add_row("nothing", "", "", f"{source.workers / sum(took.values()):,.0f}")
    for choice in choices:
        nbytes = costs.nbytes if choice.kind == "bytes" else costs.pixel_bytes
        room = size_text(round(choice.part * source.samples * nbytes, -6))
        table.add_row(choice.kind, f"{choice.part:.0%}", room, f"{choice.images_per_s:,.0f}")
    shown.print(table)
    shown.print('keep="auto" measures this itself, and takes the first.', highlight=False)
