"""Another loader of tables, in an environment of its own: ``python peers.py ARM DATA SCRATCH BATCH_SIZE WORKERS``.

It says when it is warm, and then its rows a second over the seconds that it is told.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import glob
import json
import os
import sys
import time
from collections.abc import Generator, Iterator
from functools import partial
from typing import Any

WARM_UP = 20


def to_batches(data: str, scratch: str, batch_size: int, workers: int) -> Generator[int]:
    """Pyarrow's, not shuffled, with as many threads."""
    import pyarrow as pa
    from pyarrow.dataset import dataset

    pa.set_cpu_count(workers)
    pa.set_io_thread_count(workers)
    while True:
        for batch in dataset(glob.glob(data)).to_batches(batch_size=batch_size):
            yield batch.num_rows


def datasets(data: str, scratch: str, batch_size: int, workers: int) -> Generator[int]:
    """Hugging Face's, as arrays of NumPy, in torch's DataLoader."""
    import datasets
    from torch.utils.data import DataLoader

    rows = datasets.load_dataset("parquet", data_files=data, split="train", cache_dir=scratch)
    loader = DataLoader(
        rows.with_format("numpy"), batch_size, shuffle=True, num_workers=workers, persistent_workers=True
    )
    while True:
        for batch in loader:
            yield len(next(iter(batch.values())))


def texts(data: str, scratch: str, batch_size: int, workers: int) -> Generator[int]:
    """Hugging Face's, as lists, in torch's DataLoader, which transformers' collator makes to one row."""
    import datasets
    from torch.utils.data import DataLoader
    from transformers import DataCollatorWithFlattening

    collator = DataCollatorWithFlattening(return_tensors="pt")

    def counted(rows: list[Any]) -> tuple[int, Any]:
        return len(rows), collator(rows)

    loader = DataLoader(
        datasets.load_from_disk(data),
        batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
        collate_fn=counted,
    )
    while True:
        for rows, _ in loader:
            yield rows


def ray(data: str, scratch: str, batch_size: int, workers: int) -> Generator[int]:
    """Ray Data's, as arrays of NumPy, not shuffled."""
    import ray

    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, configure_logging=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = ray.data.read_parquet(data)
    try:
        while True:
            for batch in rows.iter_batches(batch_size=batch_size, batch_format="numpy"):
                yield len(next(iter(batch.values())))
    finally:
        ray.shutdown()


def write_texts(folder: str, rows: int) -> None:
    """Write texts of tokens with Hugging Face's own ``save_to_disk``."""
    import datasets
    import numpy as np

    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(5, 0.7, rows), 1, 2048).astype(int)

    def samples() -> Iterator[dict[str, Any]]:
        for length in lengths:
            yield {"input_ids": random.integers(0, 50_257, length, np.int32)}

    features = datasets.Features({"input_ids": datasets.Sequence(datasets.Value("int32"))})
    made = datasets.Dataset.from_generator(samples, features=features, cache_dir=f"{folder}-cache")
    made.save_to_disk(folder)


def main() -> None:
    arm, data, scratch, batch_size, workers = sys.argv[1:]
    if arm == "write":
        write_texts(data, int(batch_size))
        return
    arms = {"to_batches": to_batches, "datasets": datasets, "texts": texts, "ray": ray}
    batches = arms[arm](data, scratch, int(batch_size), int(workers))
    take = partial(next, batches)
    for _ in range(WARM_UP):
        take()
    print(json.dumps({"ready": True}), flush=True)
    seconds = float(sys.stdin.readline())
    began, rows = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < seconds:
        rows += take()
    print(json.dumps({"rows_per_s": rows / took}), flush=True)
    sys.stdin.readline()  # until the others have measured, too
    batches.close()
    os._exit(0)


if __name__ == "__main__":
    main()
