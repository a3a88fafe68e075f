"""The data of the benchmark of columns and shards: the same for the same sizes."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests.sources.records.writers import write_litdata, write_mds

from penstock.bench.demo_images import make_images

NUMBERS = [f"{kind}{i}" for kind, count in (("f", 20), ("i", 10), ("l", 10)) for i in range(count)]
"""40 columns: float32, int32 and int64."""
ROW_BYTES = 20 * 4 + 10 * 4 + 10 * 8
BINS = 10
_SHARDS = 8


def write_images(folder: Path, count: int) -> dict[str, tuple[str, dict[str, str]]]:
    """Write the same images in several formats; return what an ``ImageSource`` is given for each."""
    make_images(folder / "folder", images=count)
    paths = sorted((folder / "folder").rglob("*.jpg"))
    classes = sorted({path.parent.name for path in paths})
    samples = [{"image": path.read_bytes(), "label": classes.index(path.parent.name)} for path in paths]
    each = -(-count // _SHARDS)
    for shard in range(_SHARDS):
        with tarfile.open(folder / f"{shard:04}.tar", "w", format=tarfile.GNU_FORMAT) as tar:
            for path in paths[shard::_SHARDS]:
                tar.add(path, str(path.relative_to(folder / "folder")))
        part = samples[shard * each : (shard + 1) * each]
        table = {name: [sample[name] for sample in part] for name in ("image", "label")}
        pq.write_table(pa.table(table), folder / f"{shard:04}.parquet", row_group_size=256)
    write_mds(folder / "mds", {"image": "jpeg", "label": "int"}, samples, each)
    write_litdata(folder / "litdata", {"image": "jpeg", "label": "int"}, samples, each)
    fields = {"image": "image", "label": "label"}
    return {
        "folder": (str(folder / "folder"), {}),
        "tar": (f"{folder}/*.tar", {}),
        "MDS": (f"mds:{folder / 'mds'}", fields),
        "LitData": (f"litdata:{folder / 'litdata'}", fields),
        "Parquet": (f"{folder}/*.parquet", fields),
    }


def write_numbers(path: Path, rows: int, groups: int) -> None:
    """Write 40 columns of random numbers as pyarrow does by itself, in so many row groups."""
    random = np.random.default_rng(0)
    with pq.ParquetWriter(path, _numbers(random, 1).schema) as writer:
        for size in _divided(rows, groups):
            writer.write_table(_numbers(random, size), row_group_size=size)


def _numbers(random: np.random.Generator, rows: int) -> pa.Table:
    makes = {
        "f": lambda: random.random(rows, np.float32),
        "i": lambda: random.integers(0, 100_000, rows, np.int32),
        "l": lambda: random.integers(0, 2**62, rows),
    }
    return pa.table({name: makes[name[0]]() for name in NUMBERS})


def write_sorted(path: Path, rows: int, groups: int) -> None:
    """Write numbered rows that are sorted by label."""
    ids = np.arange(rows)
    table = pa.table({"id": ids, "label": ids * BINS // rows})
    with pq.ParquetWriter(path, table.schema) as writer:
        begin = 0
        for size in _divided(rows, groups):
            writer.write_table(table.slice(begin, size), row_group_size=size)
            begin += size


def _divided(rows: int, groups: int) -> Iterator[int]:
    yield from np.diff(np.linspace(0, rows, groups + 1).astype(int)).tolist()
