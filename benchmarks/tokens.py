"""Compares a feed of tokens with nanoGPT's get_batch, on one file in the page cache.

python -m benchmarks tokens --json benchmarks/results/tokens.json

Arms take turns. Of a feed, one trainer takes views of whole blocks: what is measured is how fast windows come into
the ring. NanoGPT's batches are its own: 64 windows of 1,024 tokens, in int64; a trainer of the feed makes those.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from benchmarks.claim import ResultsFile, claim, report

import penstock

TOKENS = 200_000_000
LENGTH = 1024
NANOGPT_BATCH = 64
BLOCK_ROWS = 512
REPEATS = 5
ARM_S = 4.0


def get_batch(path: Path) -> Any:
    """As in nanoGPT's train.py (Karpathy, 2023), on the CPU."""
    data = np.memmap(path, dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - LENGTH, (NANOGPT_BATCH,))
    x = torch.stack([torch.from_numpy(data[i : i + LENGTH].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + LENGTH].astype(np.int64)) for i in ix])
    return x, y


def make_tokens(path: Path, batch_size: int) -> penstock.TokenSource:
    return penstock.TokenSource(path, length=LENGTH, batch_size=batch_size)


def epochs(loader: Any) -> Iterator[Any]:
    for _ in repeat(None):
        yield from loader


def tokens_per_s(batches: Iterator[Any]) -> float:
    """Predicted tokens a second, once the first batches have come."""
    for _ in range(20):
        next(batches)
    began, rows = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < ARM_S:
        batch = next(batches)
        rows += len(batch[0] if isinstance(batch, tuple) else batch)
    return rows * LENGTH / took


def fed(path: Path, batch_size: int, **options: Any) -> float:
    make = partial(make_tokens, path, BLOCK_ROWS)
    with penstock.share(make, f"tokens-{time.time_ns()}", batch_size, linger=0.0, **options) as loader:
        return tokens_per_s(epochs(loader))


def main(file: ResultsFile = None) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.bin"
        np.random.default_rng(0).integers(0, 50_257, TOKENS, np.uint16).tofile(path)
        arms: dict[str, Callable[[], float]] = {
            "nanoGPT": lambda: tokens_per_s(iter(partial(get_batch, path), None)),
            "ring": lambda: fed(path, BLOCK_ROWS, borrow=True),
            "feed": lambda: fed(
                path,
                NANOGPT_BATCH,
                framework="torch",
                transform=lambda batch: (batch[:, :-1].long(), batch[:, 1:].long()),
            ),
            "alone": lambda: tokens_per_s(epochs(make_tokens(path, NANOGPT_BATCH))),
        }
        rates: dict[str, list[float]] = {arm: [] for arm in arms}
        for turn in range(REPEATS):
            for arm, measure in arms.items():
                rates[arm].append(measure())
                print(f"{turn + 1} of {REPEATS}: {arm}: {rates[arm][-1] / 1e6:,.0f} M tokens/s", flush=True)
    billions = [rate / 1e9 for rate in rates["ring"]]
    ratios = [ring / other for ring, other in zip(rates["ring"], rates["nanoGPT"], strict=True)]
    claims = [
        claim("thousands of millions of tokens a second into the ring", "", billions, least=1),
        claim("tokens a second into the ring, against nanoGPT's get_batch", "x", ratios, least=15),
    ]
    print("medians, M tokens/s:", {arm: round(median(found) / 1e6) for arm, found in rates.items()})
    report(claims, file, tokens_per_s=rates)
