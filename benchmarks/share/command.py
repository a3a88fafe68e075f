"""The sharing benchmark: what Penstock claims of trainers on one feed, measured on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from benchmarks.claim import ResultsFile
from benchmarks.share.claims import Claim, claims
from benchmarks.share.plan import Settings
from benchmarks.share.run import Report, run
from benchmarks.share.tables import tables

from penstock.basics.results import check_files, progress, save
from penstock.basics.terminal import console
from penstock.errors import BadSetting


def main(
    data: Annotated[Path | None, typer.Option(help="Folder of JPEGs; generated ones unless given.")] = None,
    trainers: Annotated[
        str, typer.Option(metavar="NUMBERS", help="Numbers of trainers, one per case.")
    ] = "1,2,4,8",
    step_ms: Annotated[float, typer.Option(help="Wait in place of each training step, in ms.")] = 0.0,
    repeats: Annotated[int, typer.Option(help="Measurements of each case, in turn.")] = 5,
    seconds: Annotated[
        float, typer.Option(help="Time counted for each case; 0.3 of it for blocks from memory.")
    ] = 4.0,
    blocks: Annotated[str, typer.Option(metavar="SIZES", help="Sizes of blocks from memory.")] = "128KB,1MB,10MB",
    workers: Annotated[int, typer.Option(help="Loader workers, all together.")] = 2,
    jpeg: Annotated[bool, typer.Option(help="The JPEG loader too; needs penstock[images,torch].")] = True,
    peers: Annotated[bool, typer.Option(help="TensorSocket too, where it is installed.")] = True,
    json: ResultsFile = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="File for a picture (PNG).")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smoke run (about 30 s); not for comparison.")] = False,
) -> None:
    """Measure trainers on one feed against trainers with a loader each: speed, CPU time, latency, memory."""
    settings = Settings(
        trainers=_numbers(trainers),
        step_ms=step_ms,
        repeats=repeats,
        seconds=seconds,
        blocks=tuple(size.strip() for size in blocks.split(",") if size.strip()),
        workers=workers,
        jpeg=jpeg,
        peers=peers,
    )
    share_command(settings.quickly() if quick else settings, data, json, plot)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise BadSetting(f"--trainers {text}: give numbers with commas between them, such as 1,2,4,8") from None


def share_command(settings: Settings, data: Path | None, json: Path | None, plot: Path | None) -> None:
    """Measure, show tables, and save files."""
    check_files(json, plot=plot)
    shown = console()
    with progress(shown) as tell:
        report = run(settings, None if data is None else str(data), tell)
    rows = claims(report)
    shown.print(tables(report, rows), soft_wrap=True)
    save(json, lambda file: file.write_bytes(encoded(report, rows)), shown)
    if plot is not None:
        from benchmarks.share.plot import save as draw

        save(plot, lambda file: draw(report, file), shown)


def encoded(report: Report, rows: list[Claim]) -> bytes:
    """Encode the report with its claims as JSON."""
    plain: dict[str, Any] = msgspec.to_builtins(report)
    results = plain.pop("cells")
    rounded = _rounded({**plain, "claims": msgspec.to_builtins(rows), "cells": results})
    return msgspec.json.format(msgspec.json.encode(rounded), indent=1) + b"\n"


def _rounded(value: Any) -> Any:
    """Round floats to five digits: the rest is noise."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value
