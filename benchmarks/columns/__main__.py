"""Columns and shards: against the same images in a folder, and against other loaders of tables.

python -m venv .venv-ray && .venv-ray/bin/pip install -r benchmarks/peers/ray.txt     # once
make test-frameworks                                                                  # once: Hugging Face's
python -m benchmarks.columns --json benchmarks/results/columns.json

Arms take turns. All files lie in the page cache. Tables come into the ring of a feed and are taken by a trainer
that only counts; its first epoch begins with the feeder, so that all rows are read in it. Other loaders are
measured once they are warm. A loader that is not installed is named, and its claims are left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cache import images_per_s
from benchmarks.claim import claim, report
from benchmarks.columns import data, measure, quality

import penstock

CORES = 2
BATCH, TEXTS_BATCH, IMAGES_BATCH = 1024, 64, 128
TRAINERS = 4
MORE = 8
"""Memory for shuffling holds this part of the rows."""
PROCESS_BYTES = 150_000_000
Rates = dict[str, list[float]]


def turns(repeats: int, arms: Mapping[str, Callable[[], float]], unit: str) -> Rates:
    """Measure arms by turns."""
    rates: Rates = {arm: [] for arm in arms}
    for turn in range(repeats):
        for arm, run in arms.items():
            rates[arm].append(run())
            print(f"{turn + 1} of {repeats}: {arm}: {rates[arm][-1]:,.0f} {unit}", flush=True)
    return rates


def ratios(rates: Rates, one: str, other: str) -> list[float]:
    return [a / b for a, b in zip(rates[one], rates[other], strict=True)] if other in rates else []


def images(folder: Path, count: int, repeats: int) -> tuple[list[Any], Rates]:
    sources = dict[str, penstock.ImageSource]()
    for name, (where, options) in data.write_images(folder, count).items():
        try:
            sources[name] = penstock.ImageSource(where, batch_size=IMAGES_BATCH, **options)
        except penstock.errors.BadSetting as error:
            print(f"images from {name}: left out: {error}")
    cycles = iter(range(1000))
    for source in sources.values():
        images_per_s(source, next(cycles))  # it reads the files into the page cache
    arms = {name: (lambda source=source: images_per_s(source, next(cycles))) for name, source in sources.items()}
    rates = turns(repeats, arms, "images/s")
    for source in sources.values():
        source.close()
    said = "images/s from {}, against the same images in a folder"
    return [
        claim(said.format(x), "x", ratios(rates, x, "folder"), least=0.95) for x in rates if x != "folder"
    ], rates


def installed(arms: dict[str, partial[float]]) -> dict[str, Callable[[], float]]:
    for arm in [arm for arm in arms if arm in measure.PYTHONS and not measure.is_installed(arm)]:
        print(f"{arm}: not installed")
        del arms[arm]
    return {**arms}


def numbers(folder: Path, rows: int, repeats: int, seconds: float) -> tuple[list[Any], Rates]:
    path, part = folder / "numbers.parquet", rows * data.ROW_BYTES // MORE
    data.write_numbers(path, rows, 100)
    memory, later = list[measure.Fed](), list[float]()

    def all_in_memory() -> float:
        found = measure.fed(str(path), batch_size=BATCH, epochs=3)
        later.append(found.later)
        return found.first

    def in_handfuls(trainers: int = 1) -> float:
        found = measure.fed(str(path), batch_size=BATCH, trainers=trainers, shuffle_bytes=part)
        if trainers == 1:
            memory.append(found)
        return found.first

    fits, handfuls, ring = "all in memory, first epoch", "handfuls", "handfuls, into the ring"
    separate = f"{TRAINERS} x datasets"
    shared = f"handfuls, {TRAINERS} trainers"
    peer = partial(measure.peers, data=str(path), scratch=folder, batch_size=BATCH, seconds=seconds)
    arms = {
        ring: partial(measure.into_ring, str(path), batch_size=BATCH, shuffle_bytes=part),
        fits: partial(all_in_memory),
        handfuls: partial(in_handfuls),
        "to_batches": partial(peer, "to_batches", workers=CORES),
        "datasets": partial(peer, "datasets", workers=CORES),
        "ray": partial(peer, "ray", workers=CORES),
        shared: partial(in_handfuls, TRAINERS),
    }
    if measure.is_installed("datasets"):
        arms[separate] = partial(peer, "datasets", workers=1, count=TRAINERS)
    rates = turns(repeats, installed(arms), "rows/s")
    claims = [
        claim(f"rows/s of 40 columns from Parquet ({one}), against {what}", "x", found, least=least)
        for other, what, least in (
            ("to_batches", "pyarrow's to_batches, not shuffled", 0.5),
            ("datasets", "Hugging Face datasets in a DataLoader", 8),
            ("ray", "Ray Data's iter_batches, not shuffled", 3),
        )
        for one in (ring, fits, handfuls)
        if (found := ratios(rates, one, other))
    ]
    if found := ratios(rates, shared, separate):
        what = f"rows/s of {TRAINERS} trainers on one feed, against as many datasets loaders, together"
        claims.append(claim(what, "x", found, least=4))
    used = [each.memory / (part * 1.3 + measure.WINDOW_BYTES + PROCESS_BYTES) for each in memory]
    what = f"memory of a feeder of {MORE} x shuffle_bytes, against 1.3 x these, the ring and 150 MB"
    return [*claims, claim(what, "x", used, most=1)], {**rates, "all in memory, later epochs": later}


def texts(folder: Path, rows: int, repeats: int, seconds: float) -> tuple[list[Any], Rates]:
    if not measure.is_installed("texts"):
        print("texts: Hugging Face's datasets are not installed")
        return [], {}
    words = [measure.PEERS, "write", folder / "texts", folder, rows, 0]
    subprocess.run([measure.PYTHONS["texts"], *map(str, words)], check=True, stdout=subprocess.DEVNULL)

    def ours() -> float:
        where = f"hf:{folder / 'texts'}"
        return measure.fed(where, batch_size=TEXTS_BATCH, ragged="pack", columns=["input_ids"]).first

    peer = partial(
        measure.peers,
        "texts",
        str(folder / "texts"),
        folder,
        batch_size=TEXTS_BATCH,
        workers=CORES,
        seconds=seconds,
    )
    rates = turns(repeats, {"penstock": ours, "texts": peer}, "texts/s")
    what = "texts/s of tokens from Arrow, packed, against datasets, a DataLoader and transformers' collator"
    return [claim(what, "x", ratios(rates, "penstock", "texts"), least=5)], rates


def shuffled(folder: Path, rows: int) -> list[Any]:
    path = folder / "sorted.parquet"
    data.write_sorted(path, rows, 100)
    said, seen = quality.groups_seen(path, rows, 100)
    print(f"a block sees {seen:.1%} of the row groups, and {said:.1%} are said")
    return [
        claim(
            "blocks of 100 with p > 0.01, of rows sorted by label that fit", "", [quality.passed(path)], least=96
        ),
        claim("row groups that a block sees, said against seen: off by", "", [abs(said / seen - 1)], most=0.1),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of 40 numbers")
    parser.add_argument("--texts", type=int, default=200_000)
    parser.add_argument("--sorted", type=int, default=1_000_000, help="rows that are sorted by label")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="for which other loaders are measured")
    parser.add_argument("--only", default="images,numbers,texts,shuffled", help="parts, with commas")
    arguments = parser.parse_args()
    repeats, seconds = arguments.repeats, arguments.seconds
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        os.environ["PENSTOCK_DIR"] = f"{place}/feeds"
        folder = Path(place)
        (folder / "images").mkdir()
        parts: dict[str, Callable[[], tuple[list[Any], Rates]]] = {
            "images": lambda: images(folder / "images", arguments.images, repeats),
            "numbers": lambda: numbers(folder, arguments.rows, repeats, seconds),
            "texts": lambda: texts(folder, arguments.texts, repeats, seconds),
            "shuffled": lambda: (shuffled(folder, arguments.sorted), {}),
        }
        claims, rates = list[Any](), dict[str, Rates]()
        for part in arguments.only.split(","):
            found, rates[part] = parts[part]()
            claims += found
    print(
        "medians:", {part: {arm: round(median(found)) for arm, found in of.items()} for part, of in rates.items()}
    )
    report(claims, arguments.json, samples_per_s=rates)


if __name__ == "__main__":
    main()
