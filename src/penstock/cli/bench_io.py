"""``penstock bench io``: what reading costs on this machine, by mechanism."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def io(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="File or block device, only read; or directory, in which a temporary scratch file is made; "
            "or object, s3://… or http(s)://…; or disk under BaM's kernel module, /dev/libnvm0.",
        ),
    ],
    mech: Annotated[
        str, typer.Option(metavar="NAMES", help="Ways of reading: posix, direct, uring, object, gds, gpu; or all.")
    ] = "posix,direct,uring",
    bs: Annotated[str, typer.Option(metavar="SIZES", help="Sizes of one read.")] = "4KiB,64KiB,1MiB",
    qd: Annotated[str, typer.Option(metavar="NUMBERS", help="Reads under way.")] = "32,128",
    threads: Annotated[
        str,
        typer.Option(
            metavar="NUMBERS", help="Threads that wait for the kernel, or read on the GPU; uring needs one."
        ),
    ] = "8",
    pattern: Annotated[
        str, typer.Option(metavar="NAMES", help="Order of the reads: random, sequential.")
    ] = "random",
    dest: Annotated[
        str,
        typer.Option(metavar="NAMES", help="Destination of the bytes: host, pinned, or a GPU, such as cuda:0."),
    ] = "host",
    cold: Annotated[
        bool,
        typer.Option("--cold", help="Page cache emptied of the file before each case, which is checked."),
    ] = False,
    runtime: Annotated[float, typer.Option(metavar="SECONDS", help="Time that each case is measured.")] = 2.0,
    repeats: Annotated[int, typer.Option(help="Measurements of each case, in turn.")] = 1,
    size: Annotated[
        str, typer.Option(metavar="SIZE", help="Size of the scratch file, where PATH is a directory.")
    ] = "1GiB",
    external: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="Other tools to run beside, where they are installed: fio,gdsio,spdk,bam."
        ),
    ] = "",
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File for the rows: a list of objects.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="File for the rows: one line each.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File for a picture (PNG, SVG, PDF): throughput, CPU cost.")
    ] = None,
) -> None:
    """Measure how fast each mechanism reads here, and how much CPU time each GiB costs.

    NUMBERS, NAMES and SIZES are lists with commas; every combination is measured, in a separate process.
    Nothing is ever written to PATH, unless it is a directory.
    """
    from penstock.bench.io import plan
    from penstock.bench.io.command import io_command
    from penstock.errors import BadSetting
    from penstock.io.open import MECHANISMS

    scratch = plan.sizes("size", size)
    if len(scratch) != 1:
        raise BadSetting(f"--size {size}: give one size, such as 1GiB")
    settings = plan.Settings(
        mech=MECHANISMS if mech.strip() == "all" else plan.words(mech),
        bs_bytes=plan.sizes("bs", bs),
        qd=plan.numbers("qd", qd),
        threads=plan.numbers("threads", threads),
        pattern=plan.words(pattern),
        dest=plan.words(dest),
        cold=cold,
        runtime_s=runtime,
        repeats=repeats,
        scratch_bytes=scratch[0],
        external=plan.words(external),
    )
    io_command(settings, path, json, csv, plot)
