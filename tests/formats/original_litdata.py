"""Writes items with LitData, or says what it reads: in an environment of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from litdata import StreamingDataset
from litdata.streaming.serializers import JPEGSerializer
from litdata.streaming.writer import BinaryWriter
from litdata.types import Jpeg
from original import main


def original(value: Any, kind: str) -> Any:
    """A value as a user of LitData would give it."""
    if kind.endswith("tensor"):
        return torch.from_numpy(value)
    if kind == "jpeg":
        return Jpeg(bytes=value)
    return value.item() if isinstance(value, np.generic) else value


def plain(value: Any) -> Any:
    """A value that needs no torch to look at."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    return bytes(value) if isinstance(value, memoryview) else value


def write(folder: str, kinds: dict[str, str], items: list[dict[str, Any]], options: dict[str, Any]) -> None:
    writer = BinaryWriter(folder, chunk_size=4, **options)
    for i, item in enumerate(items):
        writer.add_item(i, {name: original(item[name], kind) for name, kind in kinds.items()})
    writer.done()
    writer.merge()


def read(folder: str) -> list[dict[str, Any]]:
    # Bytes as they are stored: PyPI's torchvision, which would decode them, is built for another torch.
    JPEGSerializer.deserialize = lambda self, data: bytes(data)  # pyright: ignore
    data = StreamingDataset(folder, shuffle=False)
    return [{name: plain(value) for name, value in data[i].items()} for i in range(len(data))]


if __name__ == "__main__":
    main(write, read)
