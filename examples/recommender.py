"""A small DLRM on a table of clicks. Start it several times at once: all runs read one feed.

python examples/recommender.py --lr 0.01 & python examples/recommender.py --lr 0.003 & wait
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

import penstock

DENSE = [f"I{i}" for i in range(1, 14)]
CATEGORIES = [f"C{i}" for i in range(1, 27)]
VALUES = 100
"""How many values a category has."""
GROUP_ROWS = 20_000


def write_clicks(path: Path, rows: int) -> None:
    """Write a table as Criteo's: 13 numbers, 26 categories and a label a row, which depends on all of them."""
    random = np.random.default_rng(0)
    weights, scores = random.normal(size=len(DENSE)), random.normal(size=(len(CATEGORIES), VALUES))
    dense = random.normal(size=(len(DENSE), rows)).astype(np.float32)
    # A few values are frequent, as those of real categories.
    categories = (VALUES * random.random((len(CATEGORIES), rows)) ** 3).astype(np.int32)
    logits = weights @ dense + np.take_along_axis(scores, categories, 1).sum(0)
    clicked = random.random(rows) < 1 / (1 + np.exp(1 - logits / 2))
    columns = dict(zip([*DENSE, *CATEGORIES], [*dense, *categories], strict=True))
    part = path.with_suffix(f".{os.getpid()}")
    pq.write_table(pa.table({"label": clicked.astype(np.float32), **columns}), part, row_group_size=GROUP_ROWS)
    with suppress(FileExistsError):  # another run was faster, and may read it already
        path.hardlink_to(part)
    part.unlink()


def make_rows(path: str) -> penstock.RecordSource:
    """Read the table; columns of one kind become one array, without a Python loop over the rows."""
    columns = {"dense": DENSE, "categories": CATEGORIES, "label": "label"}
    return penstock.RecordSource(path, columns=columns, batch_size=4096)


class Recommender(nn.Module):
    """A DLRM (Naumov et al., 2019): embeddings of categories and of the numbers, and how they go together."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(CATEGORIES) * VALUES, width)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.register_buffer("first", VALUES * torch.arange(len(CATEGORIES)))
        self.bottom = nn.Sequential(nn.Linear(len(DENSE), 64), nn.ReLU(), nn.Linear(64, width))
        vectors = 1 + len(CATEGORIES)
        self.pairs = torch.triu_indices(vectors, vectors, 1)
        self.top = nn.Sequential(nn.Linear(vectors * width + self.pairs.shape[1], 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        vectors = torch.cat([self.bottom(dense)[:, None], self.embed(categories + self.first)], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([vectors.flatten(1), products], 1)).squeeze(1)


def area_under_curve(scores: torch.Tensor, labels: torch.Tensor) -> float:
    """The chance that a click has a higher score than a row without one."""
    ranks = scores.argsort().argsort().double() + 1
    clicks = labels > 0
    hits, misses = int(clicks.sum()), int((~clicks).sum())
    return float((ranks[clicks].sum() - hits * (hits + 1) / 2) / (hits * misses))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="a Parquet file, which is written if it is not there")
    parser.add_argument("--rows", type=int, default=200_000, help="rows that are written")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    path = arguments.data or Path(tempfile.gettempdir()) / f"clicks-{arguments.rows}.parquet"
    if not path.exists():
        write_clicks(path, arguments.rows)
    model = Recommender(arguments.width).to(arguments.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
    loader = penstock.share(
        partial(make_rows, str(path)),
        "clicks",
        batch_size=arguments.batch_size,
        device=arguments.device,
        framework="torch",
    )
    for epoch in range(arguments.epochs):
        began, total = time.perf_counter(), 0.0
        scores, labels = list[torch.Tensor](), list[torch.Tensor]()
        for batch in loader:
            # Scores are of rows before they are learned from: in epoch 0 nobody has seen them.
            logits = model(batch["dense"], batch["categories"])
            loss = nn.functional.binary_cross_entropy_with_logits(logits, batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(logits)
            scores.append(logits.detach())
            labels.append(batch["label"])
        seen, took = sum(map(len, labels)), time.perf_counter() - began
        area = area_under_curve(torch.cat(scores), torch.cat(labels))
        print(
            f"lr {arguments.lr}, width {arguments.width}: epoch {epoch}, {seen} rows, {seen / took:.0f}/s, "
            f"loss {total / seen:.3f}, AUC {area:.3f}"
        )
    loader.close()


if __name__ == "__main__":
    main()
