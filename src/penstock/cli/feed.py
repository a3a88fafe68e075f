"""``penstock feed``: run a feeder in this terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from rich.text import Text

from penstock.basics.sizes import size_text
from penstock.basics.terminal import console, printable
from penstock.cli.cache import cache_of
from penstock.cli.command import argument, counted, option
from penstock.errors import BadSetting
from penstock.feed.launch.function import call, function_at
from penstock.feed.settings import DEFAULT_WINDOW
from penstock.io.cache.cache import Cache
from penstock.sources.adapt import with_workers
from penstock.sources.formats import SOURCES, NamedSource, named_source
from penstock.sources.seeds import seed_process

_FLAGS = {
    "--shuffle": "shuffle=true",
    "--in-order": "shuffle=false",
    "--verify": "verify=true",
    "--no-verify": "verify=false",
}
"""Options of a named data set that take no value."""
_NUMBERS = {int: "a whole number", float: "a number", bool: "true or false"}


def feed(
    words: Annotated[
        list[str],
        argument(
            "SOURCE [KEY=VALUE]",
            "FILE.py:FUNCTION, a function that makes the loader; or data: images:FOLDER, tokens:FILES, "
            "records:FILES (Parquet and others), or packed:FOLDER (made by penstock pack), with settings as "
            "KEY=VALUE.",
            show_default=False,
        ),
    ],
    name: Annotated[str, option("Name that trainers attach to.", metavar="NAME")],
    segments: Annotated[
        int | None, option("Parts of the data, each shuffled by itself; one unless given.")
    ] = None,
    seed: Annotated[int, option("Random seed of the order and of the workers.")] = 0,
    window: Annotated[str, option("Memory for loaded batches, such as 2GiB.", metavar="SIZE")] = DEFAULT_WINDOW,
    prefetch: Annotated[
        int | None, option("Batches loaded ahead of the fastest trainer; by their size unless given.")
    ] = None,
    epochs: Annotated[int | None, option("Epochs that each trainer gets; endless unless given.")] = None,
    linger: Annotated[
        float | None,
        option("Time after the last trainer's end at which the feed ends; never unless given.", metavar="SECONDS"),
    ] = None,
    stall_timeout: Annotated[
        float | None,
        option(
            "Time for which a trainer may hold the feed back before it is evicted; no limit unless given.",
            metavar="SECONDS",
        ),
    ] = None,
    whole_batches: Annotated[
        bool, option("--whole-batches", "Give each trainer the loader's batches as they are, even if shapes vary.")
    ] = False,
    memory: Annotated[str, option("Where the window lies: host, or a GPU, such as cuda:0.")] = "host",
    expect: Annotated[int, option("Trainers that the first batch waits for, at most 9 s.", metavar="K")] = 1,
    workers: Annotated[
        str | None,
        option("Workers of a torch loader; or ray, or ray:16, for cores of a Ray cluster.", metavar="N|ray[:N]"),
    ] = None,
    across: Annotated[
        bool, option("--across", "Give the order that feeds of this name on other machines give.")
    ] = False,
) -> None:
    """Load data in this terminal for trainers that attach, until Ctrl-C or penstock stop.

    FUNCTION takes no arguments and returns a DataLoader, arrays, or batches. Data take the arguments of
    penstock.ImageSource, TokenSource, RecordSource or PackedSource as settings:
    `penstock feed images:photos size=64 cache=/scratch/cache=200GB --name photos`.
    """
    from penstock.feed.feeder.feeder import Feeder
    from penstock.feed.launch.process import serve

    shown = console()
    where, options = _divided(words)
    named = named_source(where)
    if named is not None and "workers" in named.options and (workers or "").isdecimal():
        options["workers"], workers = workers or "", None
    _check_options(where, options, {} if named is None else named.options)
    source = _made(where, options, seed) if named is None else _opened(named, options, segments, seed)
    asked = int(workers) if workers is not None and workers.isdecimal() else workers
    if isinstance(asked, int) and with_workers(source, asked) is source:
        raise BadSetting(f"--workers {asked}: only those of a torch DataLoader are set so, and {where} gives none")
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
        across=across,
        workers=asked,
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
    if named is not None:
        for note in _notes(source, segments, stands.window_bytes):
            shown.print(note, style="yellow", soft_wrap=True)
    try:
        serve(feeder)
    except KeyboardInterrupt:
        shown.print("Interrupted; the trainers have been notified.")
        raise


def _divided(words: list[str]) -> tuple[str, dict[str, str]]:
    """Return what is fed, and its options: each ``KEY=VALUE``, or ``--key VALUE``."""
    left, where, options = [_FLAGS.get(word, word) for word in words], list[str](), dict[str, str]()
    while left:
        word = left.pop(0)
        if word.startswith("--") and "=" not in word:
            if not left:
                raise BadSetting(f"{word} needs a value, or is no option")
            word = f"{word}={left.pop(0)}"
        if word.startswith("--") or word in _FLAGS.values() or (where and "=" in word):
            key, _, value = word.removeprefix("--").partition("=")
            options[key.replace("-", "_")] = value
        else:
            where.append(word)
    if len(where) != 1:
        raise BadSetting(f"one SOURCE is fed, and these were given: {', '.join(where) or 'none'}")
    return where[0], options


def _check_options(where: str, options: dict[str, str], of_source: Mapping[str, Any]) -> None:
    """Refuse options of the feed, also misspelt: the source's error would list the source's options only."""
    own = [name for name in signature(feed).parameters if name != "words"]
    for key, value in options.items():
        if key in own and key not in of_source:
            raise BadSetting(
                f"{key}={value}: that is the feed's, not {where}'s; give --{key.replace('_', '-')} {value}"
            )
        if key not in of_source and (near := get_close_matches(key, own, 1)):
            raise BadSetting(f"there is no option {key!r}; did you mean --{near[0].replace('_', '-')}?")


def _opened(named: NamedSource, texts: dict[str, str], segments: int | None, seed: int) -> Any:
    """Make a named source from the texts of its options."""
    kinds = named.options
    options = {key: _value(key, text, kinds.get(key, str)) for key, text in texts.items()}
    return named.open(segments=segments, seed=seed, **options)


def _value(key: str, text: str, annotation: Any) -> Any:
    """Return an option's value; text if only the source can check it."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    if Cache in kinds:
        return cache_of(text)
    kind: Any = kinds[0]
    if get_origin(kind) is Callable:
        raise BadSetting(f"{key}={text}: a function is given in Python, to share() or in FILE.py")
    if str in kinds:
        return text
    if Any in kinds:  # a number, or a dict of these by column, or else text
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(text)
    several = get_origin(kind) in (tuple, Sequence)
    try:
        if several or kind in _NUMBERS:
            return msgspec.convert(text.split(",") if several else text, kind, strict=False)
    except msgspec.ValidationError as error:
        wanted = _NUMBERS.get(kind, f"values between commas ({error})")
        raise BadSetting(f"{key}={text}: give {wanted}") from None
    return text


def _made(where: str, options: dict[str, str], seed: int) -> Any:
    """Call FUNCTION."""
    if options:
        raise BadSetting(f"{', '.join(options)}: only for {', '.join(SOURCES)}; {where} has its own")
    if f"{where}:" in SOURCES:
        raise BadSetting(f"{where!r} names no data: write {where}: and their path, without a space")
    if Path(where).is_dir():
        raise BadSetting(f"{where!r} names no function; to feed what penstock pack has made, write packed:{where}")
    seed_process(seed)  # a list that FUNCTION shuffles has one order in every feeder
    return call(function_at(where), where)


def _notes(source: Any, segments: int | None, window_bytes: int) -> Iterator[str]:
    """Yield sentences on settings that this data set cannot fulfil."""
    from penstock.feed.feeder.slot_pool import RING_SHARE
    from penstock.memory.slots import SizedSlotSource

    if segments is not None and source.batches < segments:
        yield (
            f"{counted(source.batches, 'segment')}, not {segments}: {source.samples:,} samples make "
            f"{counted(source.batches, 'block')} of up to {source.batch_size:,}. With a smaller batch_size "
            "there are more."
        )
    if isinstance(source, SizedSlotSource) and not window_bytes // RING_SHARE // source.slot_bytes:
        yield (
            f"The window is too small to read ahead, so each block is copied into it: 1/{RING_SHARE} of it is for "
            f"reading ahead, and a block takes {size_text(source.block_bytes)}. "
            f"--window {-(-source.slot_bytes * 16 >> 20)}MiB holds sixteen."
        )
