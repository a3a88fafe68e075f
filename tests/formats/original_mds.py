"""Writes samples with mosaicml-streaming, or says what it reads: in an environment of its own."""

from __future__ import annotations

import pickle
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from streaming import MDSWriter, StreamingDataset


def original(value: Any, kind: str) -> Any:
    """A value as a user of MDS would give it."""
    if kind == "pil":
        return Image.fromarray(value)
    return Decimal(value) if kind == "str_decimal" else value


def plain(value: Any) -> Any:
    """A value that needs nothing but NumPy to look at."""
    if isinstance(value, Image.Image):
        return np.asarray(value)
    return str(value) if isinstance(value, Decimal) else value


def write(folder: str, given: str, options: dict[str, Any]) -> None:
    kinds, samples = pickle.loads(Path(given).read_bytes())
    limit = int(options.pop("size_limit", 4000))
    with MDSWriter(out=folder, columns=kinds, size_limit=limit, **options) as writer:
        for sample in samples:
            writer.write({name: original(sample[name], kind) for name, kind in kinds.items()})


def read(folder: str, to: str) -> None:
    data = StreamingDataset(local=folder, shuffle=False, batch_size=1)
    samples = [{name: plain(value) for name, value in data[i].items()} for i in range(len(data))]
    Path(to).write_bytes(pickle.dumps(samples, protocol=4))


if __name__ == "__main__":
    what, folder, file, *more = sys.argv[1:]
    if what == "write":
        write(folder, file, dict(word.split("=") for word in more))
    else:
        read(folder, file)
