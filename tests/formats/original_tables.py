"""Writes tables with pandas, polars or datasets, or says what these read: in an environment of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
from original import main
from PIL import Image

FEATURES: dict[str, Any] = {
    "image": datasets.Image(),
    "fruit": datasets.ClassLabel(names=["apple", "fig", "pear"]),
    "pair": datasets.Sequence(datasets.Value("float32"), length=2),
    "items": datasets.Sequence(datasets.Value("int32")),
    "grid": datasets.Array2D((2, 3), "int16"),
}
"""Features that are no ``Value``, by the names of kinds."""


def plain(value: Any) -> Any:
    """A value that needs nothing but NumPy to look at; None for what is missing."""
    if isinstance(value, Image.Image):
        return np.asarray(value)
    if isinstance(value, pd.Timestamp):
        return value.tz_convert(None).to_numpy()
    return None if value is pd.NA else value


def write(folder: str, kinds: dict[str, str], rows: list[dict[str, Any]], options: dict[str, Any]) -> None:
    columns = {name: [row[name] for row in rows] for name in kinds}
    if options["library"] == "datasets":
        features = {name: FEATURES.get(kind) or datasets.Value(kind) for name, kind in kinds.items()}
        data = datasets.Dataset.from_dict(columns, datasets.Features(features))
        data.save_to_disk(folder, num_shards=3)
        return
    if options["library"] == "polars":
        Path(folder).mkdir()
        frame = pl.DataFrame(columns, {name: getattr(pl, kind) for name, kind in kinds.items()})
        frame.write_ipc(Path(folder, "rows.arrow"), compression=options["compression"])
        return
    frame = pd.DataFrame({name: pd.Series(columns[name], dtype=kind) for name, kind in kinds.items()})
    if index := options.get("index"):
        frame = frame.set_index(index)
    Path(folder).mkdir()
    frame.to_parquet(Path(folder, "rows.parquet"), row_group_size=7, engine="pyarrow")


def read(folder: str) -> list[dict[str, Any]]:
    if (file := Path(folder, "rows.arrow")).exists():
        return pl.read_ipc(file).to_dicts()
    if Path(folder, "state.json").exists():
        data = datasets.load_from_disk(folder)
        return [{name: plain(value) for name, value in row.items()} for row in data]
    frame = pd.read_parquet(folder)
    if frame.index.name:
        frame = frame.reset_index()
    columns = {
        name: values.to_numpy() if isinstance(values.dtype, np.dtype) else values for name, values in frame.items()
    }
    return [{name: plain(values[i]) for name, values in columns.items()} for i in range(len(frame))]


if __name__ == "__main__":
    main(write, read)
