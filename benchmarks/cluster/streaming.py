"""Ray Data's ``streaming_split``, as trainers of one cluster use it: each gets a part of what nodes decode."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks.cluster.machines import Nodes

import penstock
from penstock.sources.order import Planned

_LIMIT_S = 90.0


class Split(NamedTuple):
    """What two trainers got of an epoch."""

    rows_per_s: float  # samples a second of the first; 0 if it stood still until its time was up
    lost: int  # samples that neither has trained on


class _Decode:
    """Decodes some samples as ``NodeMaker`` does: the same crops by the same decoder."""

    def __init__(self, images: str, batch_size: int) -> None:
        self._source = penstock.ImageSource(images, size=224, batch_size=batch_size)
        self._source.work_here()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        plan = Planned(0, len(batch["data"]), batch["data"], None)
        (block,) = self._source.load(iter([plan]), 0)
        return {"id": batch["data"], "image": np.array(block.tree)}


class _Trainer:
    """Trains on its part: takes a time for each batch, and notes what it was."""

    def train(self, part: Any, batch_size: int, delay_s: float, noted: str) -> float:
        """Return the samples a second of an epoch, from its first batch on."""
        rows, began = 0, 0.0
        with Path(noted).open("w") as file:
            for batch in part.iter_batches(batch_size=batch_size):
                rows, began = (rows + len(batch["id"]), began) if began else (0, time.perf_counter())
                time.sleep(delay_s)
                print(*batch["id"].tolist(), file=file, flush=True)
        return rows / (time.perf_counter() - began)


def streaming_split(
    nodes: Nodes, folder: Path, images: str, batch_size: int, delays_s: tuple[float, float], kill_s: float | None
) -> Split:
    """Run two trainers for an epoch, each with its time for a batch; kill the second after so long."""
    import ray

    ray.init(address=nodes.cluster.address, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        samples = penstock.ImageSource(images, size=224, batch_size=batch_size).samples
        ids = [np.arange(first, min(first + batch_size, samples)) for first in range(0, samples, batch_size)]
        # Which tasks read nothing: those that do want a core besides, and wait for ever where decoders have all.
        decoded = ray.data.from_numpy(ids).map_batches(
            _Decode,
            fn_constructor_args=(images, batch_size),
            batch_size=batch_size,
            compute=ray.data.ActorPoolStrategy(size=sum(nodes.cores)),
            num_cpus=1,
        )
        parts: list[Any] = decoded.streaming_split(2, equal=False)
        notes = [str(folder / f"trainer {i}") for i in range(2)]
        trainer: Callable[..., Any] = ray.remote(_Trainer).options(num_cpus=0).remote
        trainers = [trainer(), trainer()]
        ends = [
            each.train.remote(part, batch_size, delay_s, note)
            for each, part, delay_s, note in zip(trainers, parts, delays_s, notes, strict=True)
        ]
        if kill_s is not None:
            while not Path(notes[1]).exists() or not Path(notes[1]).read_text():
                time.sleep(0.01)
            time.sleep(kill_s)
            ray.kill(trainers[1])
        rate = 0.0
        with suppress(ray.exceptions.GetTimeoutError):
            rate = ray.get(ends[0], timeout=_LIMIT_S)
            if kill_s is None:
                ray.get(ends[1], timeout=_LIMIT_S)
        trained = {int(id) for note in notes for id in Path(note).read_text().split()}
        return Split(rate, samples - len(trained))
    finally:
        ray.shutdown()
