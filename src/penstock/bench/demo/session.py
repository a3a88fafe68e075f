"""A run of the demo from its settings to its report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console

from penstock.basics.packages import require
from penstock.basics.terminal import console as new_console
from penstock.basics.terminal import printable
from penstock.errors import BadSetting

if TYPE_CHECKING:
    from penstock.bench.demo.results import Report

_TRAINERS_MOST = 64


def run(
    data: Path | None,
    trainers: int,
    epochs: int,
    images: int | None,
    report_path: Path,
    console: Console | None = None,
) -> Report:
    """Compare, print the report, and save it with a picture beside it.

    Args:
        data: The folder of JPEGs; None for the demo's own images.
        images: Training images to use at most; None for all.

    Raises:
        BadSetting: a setting is out of range, or a file of the data cannot be used.
        PackageMissing: the demo's extra is not installed.
        PenstockError: a run failed.
    """
    _check(trainers, epochs, images, report_path)
    from penstock.bench.demo.compare import compare
    from penstock.bench.demo.images import find_images
    from penstock.bench.demo.picture import save_picture
    from penstock.bench.demo.progress import Bars
    from penstock.bench.demo.report import print_report
    from penstock.bench.demo.synthetic import cached_images

    console = console or new_console()
    folder = None if data is None else find_images(data, images)
    with Bars(console) as bars:
        if folder is None:
            folder = find_images(cached_images(bars.making), images)
        if folder.note:
            console.print(f"{printable(folder.note)}.")
        report = compare(folder, trainers, epochs, bars.arm, with_source=data is not None)
    report_path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    picture_path = report_path.with_suffix(".png")
    save_picture(report, picture_path)
    print_report(report, console)
    console.print(f"Saved as {printable(str(report_path))} and {printable(str(picture_path))}.", soft_wrap=True)
    return report


def _check(trainers: int, epochs: int, images: int | None, report_path: Path) -> None:
    require("the demo", "demo", "torch", "simplejpeg", "cv2", "matplotlib")
    if not 1 <= trainers <= _TRAINERS_MOST:
        raise BadSetting(f"--trainers {trainers}: from 1 to {_TRAINERS_MOST}")
    if epochs < 1:
        raise BadSetting(f"--epochs {epochs}: at least 1")
    if images is not None and images < 1:
        raise BadSetting(f"--images {images}: at least 1, or 0 for all")
    if report_path.suffix == ".png":
        raise BadSetting(f"--report {report_path}: the report is JSON; the picture is saved beside it, as .png")
    if not report_path.absolute().parent.is_dir():
        raise BadSetting(f"--report {report_path}: there is no folder {report_path.parent}")
