"""Writes samples with mosaicml-streaming, or says what it reads: in an environment of its own."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
from original import main
from PIL import Image
from streaming import MDSWriter, StreamingDataset


def original(value: Any, kind: str) -> Any:
    """A value as a user of MDS would give it."""
    if kind == "pil":
        return Image.fromarray(value)
    if kind == "int":
        return int(value)
    return Decimal(value) if kind == "str_decimal" else value


def plain(value: Any) -> Any:
    """A value that needs nothing but NumPy to look at."""
    if isinstance(value, Image.Image):
        return np.asarray(value)
    return str(value) if isinstance(value, Decimal) else value


def write(folder: str, kinds: dict[str, str], samples: list[dict[str, Any]], options: dict[str, Any]) -> None:
    limit = int(options.pop("size_limit", 4000))
    with MDSWriter(out=folder, columns=kinds, size_limit=limit, **options) as writer:
        for sample in samples:
            writer.write({name: original(sample[name], kind) for name, kind in kinds.items()})


def read(folder: str) -> list[dict[str, Any]]:
    data = StreamingDataset(local=folder, shuffle=False, batch_size=1)
    return [{name: plain(value) for name, value in data[i].items()} for i in range(len(data))]


if __name__ == "__main__":
    main(write, read)
