"""Measures what joining late costs in accuracy: a small network on part of CIFAR-10, over many seeds.

python -m benchmarks.accuracy --data cifar10 --json benchmarks/results/accuracy.json --plot accuracy.png

Each seed trains one initial network in the order of a ``DataLoader`` of its own, in that of two trainers that
begin a real feed together, and in those of a trainer that is there from the start and of others that join it in
mid-cycle. The arms of a seed are compared. What has been trained in an order is not trained in it again.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from fractions import Fraction
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
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import penstock
from penstock.basics.results import results_table
from penstock.runs.machine import describe

OWN, TOGETHER, PRESENT = "own loader", "together from the start", "there from the start"
BATCH_SIZE, RATE = 64, 0.05
_T_95 = 2.01  # of 50 seeds; of 100 it is 1.98

Epochs = list[list[torch.Tensor]]
"""The samples of each batch of each epoch."""


class Task(msgspec.Struct, frozen=True):
    """What is trained with one seed: on so many images of a folder, for so many epochs."""

    data: str
    images: int
    epochs: int
    joints: tuple[float, ...]  # where others join the first cycle, in parts of it
    seed: int = 0

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
def images(folder: Path, most: int | None = None) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Read images, of all classes equally many, as (images_NCHW, labels); reduced to 16 by 16 pixels."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    found, labels = [], []
    for label, path in enumerate(classes):
        files = sorted(path.glob("*.jpg"))[: None if most is None else most // len(classes)]
        found += [cv2.resize(cv2.imread(str(file)), (16, 16), interpolation=cv2.INTER_AREA) for file in files]
        labels += [label] * len(files)
    pixels_NCHW = np.stack(found).astype(np.float32).transpose(0, 3, 1, 2)
    return np.ascontiguousarray(pixels_NCHW / 255 - 0.47) / 0.25, np.array(labels)


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 2 * 2, 10)),
    )


def accuracy_of(epochs: Epochs, task: Task, train: Sequence[torch.Tensor], test: Sequence[torch.Tensor]) -> float:
    """Train on these batches, with a rate that falls to zero; return the accuracy in percent."""
    model = network(task.seed)
    steps = sum(map(len, epochs))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
    for ids in (ids for epoch in epochs for ids in epoch):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(train[0][ids]), train[1][ids]).backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        right = sum(
            int((model(x).argmax(1) == y).sum()) for x, y in zip(*(t.split(500) for t in test), strict=True)
        )
    return 100 * right / len(test[1])


def read_on_one_feed(loader: Any, task: Task, joining: dict[str, float]) -> dict[str, Epochs]:
    """Read epochs of one feed by turns, a batch each. Trainers join when the first is at a place in its cycle."""
    name, found = f"accuracy {os.getpid()}", {arm: Epochs() for arm in joining}
    with penstock.Feeder(loader, name, seed=task.order_seed) as feeder, ExitStack() as attached:
        thread = threading.Thread(target=feeder.run)
        thread.start()
        attached.callback(thread.join)
        attached.callback(feeder.close)
        loops: dict[str, Any] = {}
        readers: dict[str, penstock.Loader] = {}
        turn = 0
        while any(len(epochs) < task.epochs or arm in loops for arm, epochs in found.items()):
            for arm, place in joining.items():
                if arm not in readers and turn >= place * len(loader):
                    readers[arm] = attached.enter_context(penstock.attach(name))
                if arm in readers and arm not in loops and len(found[arm]) < task.epochs:
                    loops[arm] = iter(readers[arm])
                    found[arm].append([])
            for arm, loop in [*loops.items()]:
                if (batch := next(loop, None)) is not None:
                    found[arm][-1].append(batch[0])
                else:
                    del loops[arm]
                    if len(found[arm]) == task.epochs:
                        readers[arm].close()
            turn += 1
    return found


def accuracies(task: Task) -> dict[str, float]:
    """Return the accuracy of each arm with one seed."""
    torch.set_num_threads(1)
    train, test = (
        tuple(map(torch.from_numpy, images(Path(task.data, part), most)))
        for part, most in (("train", task.images), ("test", None))
    )
    loader = DataLoader(TensorDataset(torch.arange(len(train[1]))), BATCH_SIZE, shuffle=True)
    torch.manual_seed(task.order_seed)
    orders = {OWN: [[ids for (ids,) in loader] for _ in range(task.epochs)]}
    orders |= read_on_one_feed(loader, task, {TOGETHER: 0, f"{TOGETHER} too": 0})
    late = {f"joined at {place:.0%} of a cycle": place for place in task.joints}
    orders |= read_on_one_feed(loader, task, {PRESENT: 0, **late})
    trained: dict[bytes, float] = {}
    found: dict[str, float] = {}
    for arm, epochs in orders.items():
        order = b"".join(ids.numpy().tobytes() for epoch in epochs for ids in epoch)
        found[arm] = trained[order] = trained.get(order) or accuracy_of(epochs, task, train, test)
    return found


def plot(arms: dict[str, Arm], path: Path) -> None:
    mpl.use("Agg")
    figure, axes = plt.subplots(figsize=(7, 2.4), layout="constrained")
    for place, arm in enumerate(reversed(arms.values())):
        axes.errorbar(arm.difference, place, xerr=arm.interval, fmt="o", color="tab:blue", capsize=4)
    axes.set_yticks(range(len(arms)), [*reversed(arms)])
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
        "epochs": task.epochs,
        "own": [row[OWN] for row in rows],
        "feeds": compared(rows),
    }
    path.write_text(json.dumps(msgspec.to_builtins(told), indent=1) + "\n")


def command(
    data: Annotated[Path, typer.Option(help="Folder with train/CLASS/*.jpg and test/CLASS/*.jpg.")],
    seeds: Annotated[int, typer.Option(min=2, help="Seeds.")] = 100,
    image_count: Annotated[int, typer.Option("--images", help="Images to train on.")] = 5_000,
    epochs: Annotated[int, typer.Option(help="Epochs to train for.")] = 8,
    joints: Annotated[str, typer.Option(help="Where others join, in parts of a cycle.")] = "1/3,2/3",
    report: Annotated[Path | None, typer.Option("--json", help="Report to write, after each seed.")] = None,
    picture: Annotated[Path | None, typer.Option("--plot", help="Picture to write.")] = None,
) -> None:
    """Train with each seed in the order of a loader of its own and in those of a feed, and compare."""
    task = Task(str(data), image_count, epochs, tuple(float(Fraction(place)) for place in joints.split(",")))
    tasks = [msgspec.structs.replace(task, seed=seed) for seed in range(seeds)]
    rows: list[dict[str, float]] = []
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        for row in track(pool.imap(accuracies, tasks), "Training", total=seeds):
            rows.append(row)
            if report is not None and len(rows) > 1:
                saved(rows, task, report)
    arms = compared(rows)
    title = f"{len(rows)} seeds; own loader {np.mean([row[OWN] for row in rows]):.2f}%"
    table = results_table("feed", "accuracy", "difference, points", "95% interval", title=title)
    for name, arm in arms.items():
        table.add_row(name, f"{arm.mean:.2f}%", f"{arm.difference:+.2f}", f"± {arm.interval:.2f}")
    Console().print(table)
    if picture is not None:
        plot(arms, picture)


if __name__ == "__main__":
    typer.run(command)
