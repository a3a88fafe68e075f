"""Loaders of tables: ``python -m penstock.bench.load_tables JOB``, as those of images.

The columns that are named or all of them are read; rows come in a new random order each epoch, unless the
loader's name says otherwise.
"""

# The loaders' packages are there only where they are measured.
# pyright: basic, reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from penstock.bench.load_images import LoadJob, Loads, run, version

KNOWN = "'*.parquet', '*.arrow' or hf:FOLDER"


def are_tables(data: str) -> bool:
    """Whether a text names tables."""
    return data.startswith("hf:") or data.endswith((".parquet", ".arrow"))


def files_of(data: str) -> list[str]:
    """Paths of the files that a text names."""
    folder = data.removeprefix("hf:")
    return sorted(glob.glob(data if folder == data else os.path.join(glob.escape(folder), "*.arrow")))


def penstock(job: LoadJob) -> Iterator[int]:
    """Penstock's RecordSource, alone."""
    from penstock.sources.rows.record_source import RecordSource

    options: Any = {"batch_size": job.batch_size, "workers": job.workers, "columns": job.columns}
    source = RecordSource(job.folder, ragged="pack", **options)
    while True:
        yield from map(rows_of, source)


def to_batches(job: LoadJob) -> Iterator[int]:
    """Pyarrow's reader of data sets, as the files lie."""
    import pyarrow as pa

    pa.set_cpu_count(job.workers)
    while True:
        for batch in opened(job).to_batches(columns=job.columns, batch_size=job.batch_size):
            yield batch.num_rows


def hugging_face(job: LoadJob) -> Iterator[int]:
    """Hugging Face's datasets, as arrays of NumPy, in a DataLoader."""
    import datasets

    if job.folder.startswith("hf:"):
        data = datasets.load_from_disk(job.folder.removeprefix("hf:"))
    else:
        data = datasets.load_dataset(format_of(job), data_files=job.paths, split="train", cache_dir=job.scratch)
    return loaded(data.with_format("numpy", columns=job.columns), job)


def in_memory(job: LoadJob) -> Iterator[int]:
    """A DataLoader over the columns of a table that pyarrow has read."""
    from torch.utils.data import Dataset

    table = opened(job).to_table(columns=job.columns)

    class Rows(Dataset[Any]):
        columns = {name: table[name].to_numpy() for name in table.column_names}  # noqa: RUF012

        def __len__(self) -> int:
            return table.num_rows

        def __getitem__(self, i: int) -> dict[str, Any]:
            return {name: values[i] for name, values in self.columns.items()}

    return loaded(Rows(), job)


def opened(job: LoadJob) -> Any:
    """The files as pyarrow's data set, which takes streams of Arrow's (``save_to_disk``) only as batches."""
    import pyarrow as pa
    from pyarrow.dataset import dataset

    with open(job.paths[0], "rb") as file:
        is_stream = format_of(job) == "arrow" and file.read(6) != b"ARROW1"
    if not is_stream:
        return dataset(job.paths, format=format_of(job))
    streams = [pa.ipc.open_stream(pa.memory_map(path)) for path in job.paths]
    return dataset([batch for stream in streams for batch in stream], schema=streams[0].schema)


def loaded(data: Any, job: LoadJob) -> Iterator[int]:
    """Take batches of a DataLoader; of lists their lengths, and all their numbers."""
    import numpy as np
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    lists = [name for name, value in data[0].items() if np.ndim(value)]
    loader = DataLoader(
        data,
        batch_size=job.batch_size,
        shuffle=True,
        num_workers=job.workers,
        persistent_workers=True,
        collate_fn=partial(together, lists) if lists else None,
    )
    while True:
        yield from map(rows_of, loader)


def together(lists: list[str], rows: list[dict[str, Any]]) -> dict[str, Any]:
    import numpy as np
    import torch
    from torch.utils.data import default_collate

    batch: dict[str, Any] = {}
    for name in lists:
        values = [row.pop(name) for row in rows]
        batch[name] = torch.tensor([*map(len, values)]), torch.from_numpy(np.concatenate(values))
    return (default_collate(rows) if rows[0] else {}) | batch


def rows_of(batch: dict[str, Any]) -> int:
    first = next(iter(batch.values()))
    return len(first[0] if isinstance(first, tuple) else first)


def format_of(job: LoadJob) -> str:
    return "parquet" if job.paths[0].endswith(".parquet") else "arrow"


ARMS: dict[str, Loads] = {
    "penstock": Loads("Penstock RecordSource", ("penstock", "pyarrow"), penstock),
    "to_batches": Loads("pyarrow to_batches, not shuffled", ("pyarrow",), to_batches),
    "datasets": Loads("torch DataLoader, Hugging Face datasets", ("torch", "datasets"), hugging_face),
    "in_memory": Loads("torch DataLoader, columns in memory", ("torch", "pyarrow"), in_memory),
}


if __name__ == "__main__":
    run(ARMS, files_of, lambda arm: version(ARMS[arm].modules[-1]))
