"""``penstock demo``: small models, trained with a loader each, then on one feed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from penstock.basics.terminal import console, printable
from penstock.cli.command import exit_on_sigterm, option
from penstock.errors import BadSetting


def demo(
    data: Annotated[
        Path | None,
        option(
            "Folder with JPEGs, in one folder for each class, in train/ with such folders, or directly; "
            "unless given, the demo makes its own images, once, in your cache directory."
        ),
    ] = None,
    trainers: Annotated[int, option("Number of models trained side by side.", min=1, max=64)] = 4,
    epochs: Annotated[int, option("Epochs of each model.", min=1)] = 8,
    images: Annotated[int, option("Most training images; 0 for all.", min=0)] = 2000,
    report: Annotated[Path, option("File for the results; a picture is saved beside it.", metavar="FILE")] = Path(
        "demo-report.json"
    ),
) -> None:
    """Compare: small models trained side by side, first with a DataLoader each, then on one feed."""
    from penstock.basics.packages import require

    require("the demo", "demo", "torch", "simplejpeg", "cv2", "matplotlib")
    from penstock.basics.results import as_json, check_files, progress, save
    from penstock.bench.demo import compare, picture, print_report
    from penstock.bench.demo_images import cached_images, find_images

    if report.suffix == ".png":
        raise BadSetting(f"--report {report}: the report is JSON; the picture is saved beside it, as .png")
    check_files(report, report.with_suffix(".png"))
    exit_on_sigterm()
    shown = console()
    with progress(shown) as tell:
        own = cached_images(lambda done, of: tell(done, of, "making images, once")) if data is None else data
        folder = find_images(own, images or None)
        if folder.note:
            shown.print(f"{printable(folder.note)}.")
        found = compare(folder, images or None, trainers, epochs, tell)
    print_report(found, shown)
    save(report, lambda file: file.write_bytes(as_json(found)), shown)
    save(report.with_suffix(".png"), lambda file: picture(found).savefig(file), shown)
