"""Measures what the order of a feed costs in accuracy: a small network on part of CIFAR-10, over many seeds.

python -m benchmarks.accuracy --data cifar10 --json benchmarks/results/accuracy.json --plot accuracy.png

Each seed trains one initial network with a ``DataLoader`` of its own and once on each feed. The arms of a seed are
compared. Seeds are added until the 95% interval of each mean difference is narrow enough.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import cv2
import matplotlib as mpl
import msgspec
import numpy as np
import torch
import typer
from matplotlib import pyplot as plt
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import penstock
from penstock.measure.machine import describe

OWN = "own loader"
FEEDS = {
    "default": (None, False),
    "default, joined late": (None, True),
    "segments=4": (4, False),
    "segments=16": (16, False),
    "segments=16, joined late": (16, True),
}
"""Arms on a feed: its segments, and whether another trainer has begun the cycle."""
BATCH_SIZE, RATE = 64, 0.05
WANTED_POINTS = 0.25
_T_95 = 2.02  # of about 40 seeds


class Task(msgspec.Struct, frozen=True):
    """What is trained with one seed: on so many images of a folder, for so many epochs."""

    data: str
    images: int
    epochs: int
    feeds: tuple[str, ...]
    mirrored: bool = False
    seed: int = 0

    @property
    def batches(self) -> int:
        return -(-self.images * (1 + self.mirrored) // BATCH_SIZE)

    @property
    def order_seed(self) -> int:
        return 10_000 + self.seed


class Arm(msgspec.Struct):
    """Accuracies of one arm, in percent, in the order of the seeds, and how they differ from the own loader's."""

    accuracies: list[float]
    mean: float
    difference: float
    interval: float

    @classmethod
    def of(cls, accuracies: list[float], own: list[float]) -> Arm:
        differences = np.subtract(accuracies, own)
        half = _T_95 * differences.std(ddof=1) / len(own) ** 0.5
        return cls(accuracies, float(np.mean(accuracies)), float(differences.mean()), float(half))


@functools.cache
def images(
    folder: Path, most: int | None = None, *, mirrored: bool = False
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Read images, of all classes equally many, as (images_NCHW, labels); reduced to 16 by 16 pixels.

    With ``mirrored``, each comes as its mirror image too.
    """
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    found, labels = [], []
    for label, path in enumerate(classes):
        files = sorted(path.glob("*.jpg"))[: None if most is None else most // len(classes)]
        found += [cv2.resize(cv2.imread(str(file)), (16, 16), interpolation=cv2.INTER_AREA) for file in files]
        labels += [label] * len(files)
    pixels_NCHW = np.stack(found).astype(np.float32).transpose(0, 3, 1, 2)
    if mirrored:
        pixels_NCHW, labels = np.concatenate([pixels_NCHW, pixels_NCHW[..., ::-1]]), labels * 2
    return np.ascontiguousarray(pixels_NCHW / 255 - 0.47) / 0.25, np.array(labels)


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 2 * 2, 10)),
    )


def accuracy_of(loader: Iterable[Any], task: Task, test: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Train for some epochs, with a rate that falls to zero; return the accuracy in percent."""
    model = network(task.seed)
    torch.manual_seed(task.order_seed)  # a loader of its own has the order of a feed of one segment
    steps = task.epochs * task.batches
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
    for _ in range(task.epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        right = sum(
            int((model(x).argmax(1) == y).sum()) for x, y in zip(*(t.split(500) for t in test), strict=True)
        )
    return 100 * right / len(test[1])


@contextmanager
def fed(loader: Any, task: Task, segments: int | None, *, late: bool) -> Iterator[penstock.Loader]:
    """Attach to a feed of this loader; ``late`` is within its cycle, in another place for each seed."""
    name = f"accuracy {os.getpid()}"
    with penstock.Feeder(loader, name, segments=segments, seed=task.order_seed, prefetch=2) as feeder:
        thread = threading.Thread(target=feeder.run)
        thread.start()
        try:
            with penstock.attach(name) as trainer:
                if late:
                    with penstock.attach(name) as early:
                        passed = 1 + task.seed % 70 * max(1, task.batches // 80)
                        for _ in zip(range(passed), early, strict=False):
                            pass
                yield trainer
        finally:
            feeder.close()
            thread.join()


def trained(task: Task) -> dict[str, float]:
    """Return the accuracy of each arm with one seed."""
    torch.set_num_threads(1)
    parts = ("train", task.images, task.mirrored), ("test", None, False)
    train, test = (
        tuple(map(torch.from_numpy, images(Path(task.data, part), most, mirrored=mirrored)))
        for part, most, mirrored in parts
    )
    loader = DataLoader(TensorDataset(*train), BATCH_SIZE, shuffle=True)
    found = {OWN: accuracy_of(loader, task, test)}
    for arm in task.feeds:
        segments, late = FEEDS[arm]
        with fed(loader, task, segments, late=late) as feed:
            found[arm] = accuracy_of(feed, task, test)
    return found


def plot(arms: dict[str, Arm], path: Path) -> None:
    mpl.use("Agg")
    figure, axes = plt.subplots(figsize=(7, 2.4), layout="constrained")
    for place, arm in enumerate(reversed(arms.values())):
        axes.errorbar(arm.difference, place, xerr=arm.interval, fmt="o", color="tab:blue", capsize=4)
    axes.set_yticks(range(len(arms)), [f"feed, {name}" for name in reversed(arms)])
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_xlabel("points of accuracy against own loaders (95% interval)")
    axes.margins(y=0.2)
    figure.savefig(path, dpi=150)


def compared(rows: list[dict[str, float]]) -> dict[str, Arm]:
    own = [row[OWN] for row in rows]
    return {name: Arm.of([row[name] for row in rows], own) for name in rows[0] if name != OWN}


def saved(rows: list[dict[str, float]], task: Task, path: Path) -> None:
    told = {
        "machine": describe(),
        "images": task.images,
        "mirrored": task.mirrored,
        "epochs": task.epochs,
        "own": [row[OWN] for row in rows],
        "feeds": compared(rows),
    }
    path.write_text(json.dumps(msgspec.to_builtins(told), indent=1) + "\n")


def command(
    data: Annotated[Path, typer.Option(help="Folder with train/CLASS/*.jpg and test/CLASS/*.jpg.")],
    seeds: Annotated[int, typer.Option(min=2, help="Most seeds.")] = 48,
    least: Annotated[int, typer.Option(min=2, help="Least seeds.")] = 24,
    image_count: Annotated[int, typer.Option("--images", help="Images to train on.")] = 5_000,
    mirrored: Annotated[bool, typer.Option("--mirrored", help="Train on their mirror images too.")] = False,
    epochs: Annotated[int, typer.Option(help="Epochs to train for.")] = 8,
    feeds: Annotated[str, typer.Option(help="Feeds to compare, separated by semicolons.")] = ";".join(FEEDS),
    report: Annotated[Path | None, typer.Option("--json", help="Report to write, after each seed.")] = None,
    picture: Annotated[Path | None, typer.Option("--plot", help="Picture to write.")] = None,
) -> None:
    """Train with each seed on a loader of its own and on feeds, and compare."""
    task = Task(str(data), image_count, epochs, tuple(feeds.split(";")), mirrored)
    tasks = [msgspec.structs.replace(task, seed=seed) for seed in range(seeds)]
    rows: list[dict[str, float]] = []
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        for row in track(pool.imap(trained, tasks), "Training", total=seeds):
            rows.append(row)
            if report is not None and len(rows) > 1:
                saved(rows, task, report)
            if len(rows) >= least and max(arm.interval for arm in compared(rows).values()) <= WANTED_POINTS:
                break
    arms = compared(rows)
    table = Table(title=f"{len(rows)} seeds; own loader {np.mean([row[OWN] for row in rows]):.2f}%")
    for heading in ("feed", "accuracy", "difference, points", "95% interval"):
        table.add_column(heading, justify="left" if heading == "feed" else "right")
    for name, arm in arms.items():
        table.add_row(name, f"{arm.mean:.2f}%", f"{arm.difference:+.2f}", f"± {arm.interval:.2f}")
    Console().print(table)
    if picture is not None:
        plot(arms, picture)


if __name__ == "__main__":
    typer.run(command)
