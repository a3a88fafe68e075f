"""A source over many times its shuffle buffer takes no more memory than that, a little, and what Python takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

MB = 10**6
SHUFFLE_BYTES = 64 * MB
ROW_BYTES = 80

READ = """
import sys, threading
from contextlib import closing

import penstock

def rss():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))

most, ended = 0, threading.Event()

def watch():
    global most
    while not ended.wait(0.005):
        most = max(most, rss())

path, shuffle_bytes = sys.argv[1], int(sys.argv[2])
import numpy, pyarrow.parquet, pyarrow.dataset, pyarrow.compute
before = rss()
watcher = threading.Thread(target=watch)
watcher.start()
rows = 0
with closing(penstock.RecordSource(path, shuffle_bytes=shuffle_bytes, batch_size=4096, workers=2)) as source:
    for _ in range(2):
        for batch in source:
            rows += len(batch["c0"])
ended.set()
watcher.join()
print(rows, most - before)
"""


def many(folder: Path, total: int, kind: str) -> tuple[str, int]:
    """Write a file of some bytes, in memory, of numbers or of texts; give its path and its rows."""
    path, rng = folder / "many.parquet", np.random.default_rng(0)
    each, groups = 50_000, total // (50_000 * ROW_BYTES)
    schema = pa.schema([(f"c{i}", pa.int64()) for i in range(10)])
    if kind == "texts":
        schema = pa.schema([("c0", pa.int64()), ("text", pa.string())])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for _ in range(groups):
            numbers = rng.integers(0, 2**62, (each, 10))
            if kind == "texts":
                texts = [f"{n:064}" for n in numbers[:, 1].tolist()]
                table = pa.table({"c0": numbers[:, 0], "text": texts}, schema)
            else:
                table = pa.table({f"c{i}": numbers[:, i] for i in range(10)}, schema)
            writer.write_table(table)
    return str(path), each * groups


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["numbers", pytest.param("texts", marks=pytest.mark.soak)])
def test_memory_stays_within_the_shuffle_buffer(tmp_path, kind):
    path, rows = many(tmp_path, 8 * SHUFFLE_BYTES, kind)
    read = [sys.executable, "-c", READ, path, str(SHUFFLE_BYTES)]
    done = subprocess.run(read, capture_output=True, text=True, check=True)
    Path(path).unlink()
    read_rows, grown = map(int, done.stdout.split())
    assert read_rows == 2 * rows
    assert grown <= SHUFFLE_BYTES * 1.3 + 150 * MB
