"""Writes items with LitData, or says what it reads: in an environment of its own."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import torch
from litdata import StreamingDataset
from litdata.streaming.serializers import JPEGSerializer
from litdata.streaming.writer import BinaryWriter
from litdata.types import Jpeg


def original(value: Any, kind: str) -> Any:
    """A value as a user of LitData would give it."""
    if kind.endswith("tensor"):
        return torch.from_numpy(value)
    if kind == "jpeg":
        return Jpeg(bytes=value)
    return value


def plain(value: Any) -> Any:
    """A value that needs no torch to look at."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    return bytes(value) if isinstance(value, memoryview) else value


def write(folder: str, given: str, options: dict[str, Any]) -> None:
    kinds, items = pickle.loads(Path(given).read_bytes())
    writer = BinaryWriter(folder, chunk_size=4, **options)
    for i, item in enumerate(items):
        writer.add_item(i, {name: original(item[name], kind) for name, kind in kinds.items()})
    writer.done()
    writer.merge()


def read(folder: str, to: str) -> None:
    # Bytes as they are stored: PyPI's torchvision, which would decode them, is built for another torch.
    JPEGSerializer.deserialize = lambda self, data: bytes(data)  # pyright: ignore
    data = StreamingDataset(folder, shuffle=False)
    items = [{name: plain(value) for name, value in data[i].items()} for i in range(len(data))]
    Path(to).write_bytes(pickle.dumps(items, protocol=4))


if __name__ == "__main__":
    what, folder, file, *more = sys.argv[1:]
    if what == "write":
        write(folder, file, dict(word.split("=") for word in more))
    else:
        read(folder, file)
