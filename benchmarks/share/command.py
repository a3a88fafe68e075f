"""The sharing benchmark behind its options: run with progress, show tables, save JSON and picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from benchmarks.share.claims import Claim, claims
from benchmarks.share.plan import Settings
from benchmarks.share.run import Report, run
from benchmarks.share.tables import tables

from penstock.basics.results import check_files, progress, save
from penstock.basics.terminal import console


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
