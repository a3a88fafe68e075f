"""A run of the demo from its settings to its report."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console

from penstock.errors import BadSetting

if TYPE_CHECKING:
    from penstock.demo.results import Report

_NEEDS = {
    "torch": "torch",
    "simplejpeg": "simplejpeg",
    "cv2": "opencv-python-headless",
    "matplotlib": "matplotlib",
}
_TRAINERS_MOST = 64


def run(
    data: Path | None,
    trainers: int,
    epochs: int,
    images: int | None,
    report_path: Path,
    console: Console | None = None,
) -> Report:
    """Compare, print, and save ``report_path`` and a picture beside it.

    Args:
        data: The folder of JPEGs; None for the demo's own images.
        images: Training images to use at most; None for all.

    Raises:
        BadSetting: a setting, a file of the data or a missing package is in the way.
        PenstockError: a training failed.
    """
    _check(trainers, epochs, images, report_path)
    from penstock.demo.compare import compare
    from penstock.demo.images import find_images
    from penstock.demo.picture import save_picture
    from penstock.demo.progress import Bars
    from penstock.demo.report import print_report
    from penstock.demo.synthetic import cached_images

    console = console or Console()
    folder = None if data is None else find_images(data, images)
    with Bars(console) as bars:
        if folder is None:
            folder = find_images(cached_images(bars.making), images)
        if folder.note:
            console.print(f"{folder.note}.")
        report = compare(folder, trainers, epochs, bars.arm)
    report_path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    picture_path = report_path.with_suffix(".png")
    save_picture(report, picture_path)
    print_report(report, console)
    console.print(f"Saved as {report_path} and {picture_path}.")
    return report


def _check(trainers: int, epochs: int, images: int | None, report_path: Path) -> None:
    missing = [package for module, package in _NEEDS.items() if find_spec(module) is None]
    if missing:
        raise BadSetting(f'the demo needs {", ".join(missing)}: pip install "penstock[demo]"')
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
