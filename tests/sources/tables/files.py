"""Tables in files, in row groups of the sizes that a test wants."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

KINDS = ("parquet", "arrow", "stream")
"""A stream is an Arrow file too, by its ending."""


def numbers(rows: int, first: int = 0) -> pa.Table:
    """Rows whose values follow from their number."""
    ids = np.arange(first, first + rows)
    return pa.table({"id": ids, "half": (ids / 2).astype(np.float32), "flag": ids % 3 == 0})


def written(path: Path, table: pa.Table, groups: Sequence[int] | int = 10, kind: str = "", **options: Any) -> str:
    """Write a table in groups of so many rows each, as what the path ends in."""
    sizes = [groups] * -(-table.num_rows // groups) if isinstance(groups, int) else groups
    starts = np.cumsum([0, *sizes]).tolist()
    parts = [table.slice(start, size) for start, size in zip(starts, sizes, strict=False)]
    kind = kind or path.suffix[1:]
    if kind == "stream":
        path = path.with_suffix(".arrow")
    if kind == "parquet":
        with pq.ParquetWriter(path, table.schema, **options) as writer:
            for part in parts:
                writer.write_table(part, max(1, part.num_rows))
        return str(path)
    new: Any = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema, **options) as writer:
        for part in parts:
            batches = part.combine_chunks().to_batches()
            for batch in batches or [pa.RecordBatch.from_pylist([], table.schema)]:
                writer.write_batch(batch)
    return str(path)


def saved(folder: Path, tables: Sequence[pa.Table], groups: Sequence[int] | int = 10) -> str:
    """Write tables as ``datasets.Dataset.save_to_disk`` does, each as a shard."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05}-of-{len(tables):05}.arrow" for i in range(len(tables))]
    for name, table in zip(names, tables, strict=True):
        written(folder / name, table, groups, "stream")
    state = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "5f0c7a4dbb3c1d8e",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}}))
    return f"hf:{folder}"
