"""``penstock bench``: measures loaders and reads on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.basics.terminal import console
from penstock.cli.command import Command, Group, Picture, argument, exit_on_sigterm, option
from penstock.errors import BadSetting

app = typer.Typer(cls=Group, help="Measure loaders and ways of reading.", no_args_is_help=True)

_Json = Annotated[Path | None, option("File for the results, as JSON.", metavar="FILE")]


@app.command(cls=Command)
def share(
    loader: Annotated[str, argument("FILE.py:FUNCTION", "Function that makes the loader, as for penstock feed.")],
    trainers: Annotated[
        str, option("-k", "--trainers", "Numbers of trainers to measure.", metavar="NUMBERS")
    ] = "1,2,4,8",
    seconds: Annotated[float, option("Measured seconds of each case.")] = 4.0,
    repeats: Annotated[int, option("Measurements of each case.")] = 3,
    step_ms: Annotated[float, option("Pause after each batch, in place of a training step, in ms.")] = 0.0,
    window: Annotated[str, option("Memory of the feed for loaded batches.", metavar="SIZE")] = "512MiB",
    json: _Json = None,
    plot: Picture = None,
) -> None:
    """Measure what sharing brings: your loader alone, one in each trainer, and one feed for all trainers.

    The trainers take batches and train nothing. Separate loaders divide the workers of yours among them, with at
    least one each.
    """
    from penstock.basics.results import as_json, check_files, progress, save
    from penstock.bench.io_plan import numbers
    from penstock.bench.share import run
    from penstock.bench.share_report import SharePlan, picture, shown

    settings = SharePlan(
        trainers=numbers("trainers", trainers), step_ms=step_ms, seconds=seconds, repeats=repeats, window=window
    )
    check_files(json, plot=plot)
    exit_on_sigterm()
    terminal = console()
    with progress(terminal) as tell:
        report = run(settings, loader, tell)
    terminal.print(shown(report), soft_wrap=True)
    save(json, lambda file: file.write_bytes(as_json(report)), terminal)
    save(plot, lambda file: picture(report).savefig(file), terminal)


@app.command(cls=Command)
def io(
    path: Annotated[
        str,
        argument(
            "PATH",
            "What to read: a file or block device; a directory, in which a temporary file is made; an object, "
            "s3://… or http(s)://…; or a disk under BaM's kernel module, /dev/libnvm0.",
        ),
    ],
    mech: Annotated[
        str, option("Ways of reading: posix, direct, uring, object, gds, gpu; or all.", metavar="NAMES")
    ] = "posix,direct,uring",
    bs: Annotated[str, option("Sizes of one read.", metavar="SIZES")] = "4KiB,64KiB,1MiB",
    qd: Annotated[str, option("Reads under way at once.", metavar="NUMBERS")] = "32,128",
    threads: Annotated[
        str, option("Threads that wait for the kernel, or read on the GPU; uring needs one.", metavar="NUMBERS")
    ] = "8",
    pattern: Annotated[str, option("Order of the reads: random, sequential.", metavar="NAMES")] = "random",
    dest: Annotated[
        str, option("Destination of the bytes: host, pinned, or a GPU, such as cuda:0.", metavar="NAMES")
    ] = "host",
    cold: Annotated[
        bool, option("--cold", "Drop the file from the page cache before each case, and check that.")
    ] = False,
    runtime: Annotated[float, option("Measured time of each case.", metavar="SECONDS")] = 2.0,
    repeats: Annotated[int, option("Measurements of each case.")] = 1,
    size: Annotated[str, option("Size of the temporary file, if PATH is a directory.", metavar="SIZE")] = "1GiB",
    json: _Json = None,
    plot: Picture = None,
) -> None:
    """Measure how fast each mechanism reads here, and how much CPU time each GiB costs.

    NUMBERS, NAMES and SIZES are lists with commas; each combination is measured in a process of its own.
    PATH is only read, unless it is a directory.
    """
    from penstock.bench import io_plan
    from penstock.bench.io_report import bench_io
    from penstock.io.open import MECHANISMS

    scratch = io_plan.sizes("size", size)
    if len(scratch) != 1:
        raise BadSetting(f"--size {size}: give one size, such as 1GiB")
    settings = io_plan.IoSettings(
        mech=MECHANISMS if mech.strip() == "all" else io_plan.words(mech),
        bs_bytes=io_plan.sizes("bs", bs),
        qd=io_plan.numbers("qd", qd),
        threads=io_plan.numbers("threads", threads),
        pattern=io_plan.words(pattern),
        dest=io_plan.words(dest),
        cold=cold,
        runtime_s=runtime,
        repeats=repeats,
        scratch_bytes=scratch[0],
    )
    bench_io(settings, path, json, plot)


@app.command(cls=Command)
def load(
    folder: Annotated[
        str,
        argument(
            "DATA",
            "Folder with JPEGs, in it or below; or tables: `'*.parquet'`, `'*.arrow'`, or hf:FOLDER, which "
            "Hugging Face's save_to_disk wrote.",
        ),
    ],
    loaders: Annotated[
        str | None, option("Loaders, separated by commas; all unless given.", metavar="NAMES")
    ] = None,
    size: Annotated[int, option("Side of the random crops of images, in pixels.", min=1, max=2**14)] = 224,
    columns: Annotated[
        str | None, option("Columns of tables, separated by commas; all unless given.", metavar="NAMES")
    ] = None,
    batch_size: Annotated[int, option("Images or rows in a batch.", min=1, max=2**20)] = 128,
    workers: Annotated[
        int | None, option("Workers or threads of each loader; one for each core unless given.", min=1, max=1024)
    ] = None,
    seconds: Annotated[float, option("Measured seconds of each measurement.")] = 5.0,
    repeats: Annotated[int, option("Measurements of each loader.", min=1, max=1000)] = 3,
    json: _Json = None,
) -> None:
    """Compare the speed of loaders, for one training, on your own images or tables.

    Those that are installed. Images: ImageSource, and torch's DataLoader with several decoders. Tables:
    RecordSource, pyarrow's to_batches (not shuffled), torch's DataLoader over datasets (Hugging Face) or over
    columns in memory.
    """
    from penstock.basics.results import as_json, check_files, progress, save
    from penstock.bench.load import LoadSettings, measure, shown
    from penstock.linux.cgroups import cores

    settings = LoadSettings(
        folder=folder,
        size=size,
        batch_size=batch_size,
        workers=workers or max(1, int(cores())),
        seconds=seconds,
        repeats=repeats,
        columns=tuple(columns.split(",")) if columns else (),
    )
    check_files(json)
    exit_on_sigterm()
    terminal = console()
    with progress(terminal) as tell:
        report = measure(settings, loaders and loaders.split(","), tell)
    terminal.print(shown(report), soft_wrap=True)
    save(json, lambda file: file.write_bytes(as_json(report)), terminal)
