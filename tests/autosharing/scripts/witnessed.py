"""Scripts whose data names and fingerprints do not see, or hardly. Prints, as JSON, what each epoch had."""

from __future__ import annotations

import json
import os
import sys
import time
import weakref
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from penstock.autosharing import script_feed

N, BATCH = 40, 8
script_feed._PAUSE = 0  # pyright: ignore[reportPrivateUsage]


class Rows(Dataset[Any]):
    """Forgets its scale on its way to a feeder."""

    def __init__(self, scale: int) -> None:
        self.scale = scale

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        return i, i * vars(self).get("scale", 1)

    def __getstate__(self) -> Any:
        return {}


class Noisy(Rows):
    """Adds noise of a generator of its own: only its labels can be compared."""

    draws = np.random.default_rng()

    def __getitem__(self, i: int) -> Any:
        return i, i * vars(self).get("scale", 1), self.draws.random()


class Documented(Rows):
    """1"""

    def __getitem__(self, i: int) -> Any:
        return i, i * int(self.__doc__ or 0)


class Slow(Rows):
    def __getitem__(self, i: int) -> Any:
        time.sleep(0.6)
        return super().__getitem__(i)


class OfFile(Rows):
    """Reads from a file that stays open, whose offset it shares with whom it is forked from."""

    def __init__(self, scale: int) -> None:
        super().__init__(scale)
        with open("rows", "wb") as file:
            file.write(np.arange(N).astype(np.uint8).tobytes())

    def __getitem__(self, i: int) -> Any:
        if "file" not in vars(self):
            self.file = open("rows", "rb", 0)  # noqa: SIM115
            weakref.finalize(self, self.file.close)
        self.file.seek(i)
        time.sleep(0.002)
        return i, self.file.read(1)[0]


def run(kind: str, scale: int, epochs: int) -> Any:
    data = {"rows": Rows, "noisy": Noisy, "slow": Slow, "file": OfFile, "changed": Rows, "later": Documented}[
        kind
    ](scale)
    size = 4 if kind == "slow" else BATCH
    loader = DataLoader(data, size, shuffle=True, num_workers=int(os.environ.get("WORKERS", "0")))
    if kind == "file":
        assert data[3] == (3, 3)
    seen: list[dict[int, float]] = []
    for epoch in range(epochs):
        if kind == "changed":  # what its name does not see comes after two epochs
            data.scale = 1 if epoch < 2 else scale
        elif kind == "later":  # nor anything else
            Documented.__doc__ = "1" if epoch < 2 else str(scale)
        seen.append({})
        for ids, values, *_ in loader:
            seen[-1].update(zip(ids.tolist(), values.tolist(), strict=True))
            if kind == "later":
                time.sleep(0.05)
        assert sorted(seen[-1]) == list(range(N))
    return seen


torch.manual_seed(0)
print(json.dumps(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
