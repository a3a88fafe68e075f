"""Pools of CIFAR-10's images in which there is something to select, and tasks that score them.

``PENSTOCK_CIFAR10`` names the folder with ``train/<class>/*.jpg`` and ``test/<class>/*.jpg``; what is decoded is
kept there as ``decoded.npz``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock import select

CONFUSED = {2: 0, 3: 5, 4: 7, 9: 1}  # bird as airplane, cat as dog, deer as horse, truck as automobile
VEHICLES = (0, 1, 8, 9)
YES = np.array([0, 1, 0, 1, 1, 1, 0, 1, 0, 1])  # "does it drive on roads", "is it a mammal"
Rows = npt.NDArray[np.int64]


class Pool(NamedTuple):
    """Images and labels to train on, to compare with, to choose methods by (none of the large pool), to test."""

    train: Images
    validation: Images
    choosing: Images
    test: Images


class Images:
    """Images in memory with their labels, as a map-style data set."""

    def __init__(self, pixels: Tensor, labels: Rows) -> None:
        self.pixels = pixels  # shape ``(n, 3, 32, 32)``, float32
        self.labels = labels  # shape ``(n,)``

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, id: int) -> tuple[Tensor, int]:
        return self.pixels[id], int(self.labels[id])


def clean(seed: int) -> Pool:
    """10,000 images, evenly drawn from all classes."""
    return _drawn(np.random.default_rng(seed), 10_000)


def large(seed: int) -> Pool:
    """19,000 images, evenly drawn from all classes: all there are but 1,000."""
    return _drawn(np.random.default_rng(seed), 19_000)


def noisy(seed: int, count: int = 10_000) -> Pool:
    """10,000 images: half of the birds, cats, deer and trucks have the label of what they are taken for."""
    draws = np.random.default_rng(seed)
    pool = _drawn(draws, count)
    for true, wrong in CONFUSED.items():
        rows = np.flatnonzero(pool.train.labels == true)
        pool.train.labels[draws.permutation(rows)[: len(rows) // 2]] = wrong
    return pool


def duplicates(seed: int) -> Pool:
    """5,000 images, and 5,000 near-duplicates of 100 of them: shifted, brighter or darker, with noise."""
    draws = np.random.default_rng(seed)
    pool = _drawn(draws, 5000)
    often = 1 / np.arange(1, 101) ** 0.5
    originals = np.repeat(np.arange(100), draws.multinomial(5000, often / often.sum()))
    copies = torch.stack([_changed(pool.train.pixels[row], draws) for row in originals])
    labels = np.concatenate([pool.train.labels, pool.train.labels[originals]])
    return pool._replace(train=Images(torch.cat([pool.train.pixels, copies]), labels))


def mixed(seed: int) -> Pool:
    """1,000 vehicles and 9,000 animals, each kind with a question of yes or no; the vehicles' is wanted."""
    draws = np.random.default_rng(seed)
    pixels, labels = _decoded("train")
    wanted = np.isin(labels, VEHICLES)
    vehicles, animals = (draws.permutation(np.flatnonzero(each)) for each in (wanted, ~wanted))
    rows = draws.permutation(np.concatenate([vehicles[:1000], animals[:9000]]))
    test, its = _decoded("test")
    tested = np.flatnonzero(np.isin(its, VEHICLES))
    return Pool(
        Images(_normal(pixels[rows]), YES[labels[rows]]),
        *(Images(_normal(pixels[each]), YES[labels[each]]) for each in (vehicles[1000:1300], vehicles[1300:3300])),
        Images(_normal(test[tested]), YES[its[tested]]),
    )


def noisy_small(seed: int) -> Pool:
    """4,000 images of the noisy kind, for methods that take long."""
    return noisy(seed, 4000)


POOLS = {
    "clean": clean,
    "large": large,
    "noisy": noisy,
    "noisy_small": noisy_small,
    "duplicates": duplicates,
    "mixed": mixed,
}
WIDTHS = {"noisy_small": 16}
"""Widths of networks, by pool; 32 for others."""
EPOCHS = {"mixed": 64, "duplicates": 40}
"""Epochs of a training on all data, by pool; 32 for others."""


def network(width: int = 32) -> nn.Module:
    """Three convolutions and a linear layer: 96,000 parameters at width 32, 25,000 at 16, 6,600 at 8."""
    layers: list[nn.Module] = []
    for inputs, outputs, kernel, stride in (
        (3, width, 4, 2),
        (width, 2 * width, 3, 1),
        (2 * width, 4 * width, 3, 1),
    ):
        layers += [
            nn.Conv2d(inputs, outputs, kernel, stride, 1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    layers[-1] = nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * width, 10))


def small_pixels(_: nn.Module, batch: Any) -> Tensor:
    """An embedding without a model: 4 x 4 pixels, with the mean and contrast of each image taken off."""
    pixels = functional.adaptive_avg_pool2d(batch[0], 4).flatten(1)
    pixels = pixels - pixels.mean(1, keepdim=True)
    return functional.normalize(pixels, dim=1)


def _task(pool: Pool, width: int = 32, **changes: Any) -> select.Task:
    torch.set_num_threads(1)
    return select.Task(
        data=pool.train,
        validation=pool.validation,
        make_model=lambda: network(width),
        make_proxy=lambda: network(width // 4),
        **changes,
    )


def clean_task(seed: int = 0) -> select.Task:
    """The clean pool."""
    return _task(clean(seed))


def large_task(seed: int = 0) -> select.Task:
    """The large pool."""
    return _task(large(seed))


def noisy_task(seed: int = 0) -> select.Task:
    """The noisy pool."""
    return _task(noisy(seed))


def noisy_small_task(seed: int = 0) -> select.Task:
    """The small noisy pool, and a smaller model."""
    return _task(noisy_small(seed), WIDTHS["noisy_small"])


def duplicates_task(seed: int = 0) -> select.Task:
    """The pool with near-duplicates."""
    return _task(duplicates(seed), embed=small_pixels)


def mixed_task(seed: int = 0) -> select.Task:
    """The mixed pool."""
    return _task(mixed(seed))


def _drawn(draws: np.random.Generator, count: int) -> Pool:
    pixels, labels = _decoded("train")
    rows = draws.permutation(len(labels))
    test, its = _decoded("test")
    parts = rows[:count], rows[count : count + 1000], rows[count + 1000 : count + 3000]
    return Pool(
        *(Images(_normal(pixels[each]), labels[each].copy()) for each in parts), Images(_normal(test), its)
    )


def _changed(image: Tensor, draws: np.random.Generator) -> Tensor:
    shift = tuple(draws.integers(-2, 3, 2).tolist())
    noise = torch.from_numpy(draws.standard_normal(image.shape).astype(np.float32))
    light, offset = draws.uniform(0.9, 1.1), draws.uniform(-0.1, 0.1)
    return torch.roll(image, shift, (1, 2)) * light + offset + 0.05 * noise


def _normal(pixels: npt.NDArray[np.uint8]) -> Tensor:
    return (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25


def _decoded(split: str) -> tuple[npt.NDArray[np.uint8], Rows]:
    folder = Path(os.environ["PENSTOCK_CIFAR10"])
    kept = folder / "decoded.npz"
    if not kept.exists():
        import simplejpeg

        found: dict[str, Any] = {}
        for each in ("train", "test"):
            paths = [sorted(place.iterdir()) for place in sorted((folder / each).iterdir())]
            found[f"{each}_labels"] = np.repeat(np.arange(len(paths)), [len(files) for files in paths])
            found[each] = np.stack(
                [simplejpeg.decode_jpeg(file.read_bytes()) for files in paths for file in files]
            )
        written = folder / f"decoded.{os.getpid()}.npz"  # two runs may do this at the same time
        np.savez(written, **found)
        written.replace(kept)
    read = np.load(kept)
    return read[split], read[f"{split}_labels"]
