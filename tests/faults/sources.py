"""What the fault tests feed. Every sample tells its number, and its bytes follow from that."""

from __future__ import annotations

import functools
import io
import os
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import penstock


def payload_of(ids: Any, width: int) -> Any:
    """Bytes that differ from sample to sample and from place to place."""
    return ((np.asarray(ids)[:, None] * 131 + np.arange(width)) % 251).astype(np.uint8)


def rows(samples: int = 1000, batch_size: int = 10, width: int = 1000, **options: Any) -> penstock.ArraySource:
    ids = np.arange(samples)
    options = {"segments": 4, **options}
    return penstock.ArraySource({"id": ids, "payload": payload_of(ids, width)}, batch_size=batch_size, **options)


def rows_beside_a_fake_gpu(**options: Any) -> penstock.ArraySource:
    """For ``share``: the feeder's process takes whatever ``memory`` names for a fake."""
    from tests.fakes.gpu import FakeGpu

    from penstock.memory import gpu_ring

    gpu_ring.gpu_of = lambda _: FakeGpu(5)  # type: ignore[assignment]
    return rows(**options)


def rows_of_an_impatient_feeder(**options: Any) -> penstock.ArraySource:
    """For a feeder that drops who says nothing after half a second."""
    from penstock.feed.feeder import connections

    connections.HELLO_S = 0.5
    return rows(**options)


def rows_of_a_quick_pace(**options: Any) -> penstock.ArraySource:
    """For a feeder whose trainers part within seconds, after a trial of one."""
    from tests.support.quick_pace import quickened

    quickened(trial_s=1.0)
    return rows(**options)


def decoded(record: bytes, width: int = 500) -> dict[str, Any]:
    """A record of a stream: its number in JSON, as the line of a file."""
    return {"id": int(record), "payload": payload_of([int(record)], width)[0]}


def stream(log: str, cycle: int = 60, **options: Any) -> penstock.StreamSource:
    options = {"close_after": 0.3, "batch_size": 10, "workers": 1, **options}
    return penstock.StreamSource(log, decoded, cycle=cycle, **options)


def await_gate(gate: str) -> None:
    """Wait until a file is there, so that all trainers are."""
    while gate and not Path(gate).exists():
        time.sleep(0.005)


def loader(
    samples: int = 400, batch_size: int = 10, workers: int = 0, bad: int | None = None, gate: str = ""
) -> Any:
    """A DataLoader; its dataset raises at sample ``bad``, once the gate is open."""
    from torch.utils.data import DataLoader, Dataset

    class Samples(Dataset):
        def __len__(self) -> int:
            return samples

        def __getitem__(self, i: int) -> Any:
            if i == bad:
                await_gate(gate)
                raise ValueError(f"sample {i} cannot be decoded")
            return {"id": i, "payload": payload_of([i], 1000)[0]}

    return DataLoader(Samples(), batch_size=batch_size, num_workers=workers)


class Paced:
    """Batches one after the other, with a pause before each."""

    def __init__(self, samples: int, batch_size: int, pause_s: float) -> None:
        self.samples, self.batch_size, self.pause_s = samples, batch_size, pause_s

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, self.samples, self.batch_size):
            time.sleep(self.pause_s)
            ids = np.arange(start, min(start + self.batch_size, self.samples))
            yield {"id": ids, "payload": payload_of(ids, 1000)}


class Blocking(Paced):
    """Batches that come once the gate is open, and stop coming after some, for ever."""

    def __init__(self, after: int, gate: str = "") -> None:
        super().__init__(after * 10, 10, 0)
        self.gate = gate

    def __iter__(self) -> Iterator[Any]:
        await_gate(self.gate)
        yield from super().__iter__()
        while True:
            time.sleep(3600)


class Changing:
    """Batches that come once the gate is open; their leaf ``x`` changes midway, in shape or in type."""

    def __init__(self, what: str, gate: str) -> None:
        self.what, self.gate = what, gate

    def __iter__(self) -> Iterator[Any]:
        other = np.zeros((4, 3)) if self.what == "shape" else np.zeros((4, 2), np.float32)
        await_gate(self.gate)
        for i in range(20):
            ids = np.arange(i * 4, i * 4 + 4)
            yield {"id": ids, "payload": payload_of(ids, 10), "x": np.zeros((4, 2)) if i < 10 else other}


class Empty:
    """No batch at all, once the gate is open."""

    def __init__(self, gate: str) -> None:
        self.gate = gate

    def __iter__(self) -> Iterator[Any]:
        await_gate(self.gate)
        return iter(())


def failing(message: str, unless: str = "") -> Any:
    """A make_loader that raises, unless a file is there."""
    if unless and Path(unless).exists():
        return rows()
    raise RuntimeError(message)


def announcing(
    started: str, pause_s: float = 0.0, pauses: int | None = None, gate: str = "", **options: Any
) -> Any:
    """Rows, and a line in a file for every process that makes them; the first few, or all, pause."""
    with open(started, "a") as file:
        file.write(f"{os.getpid()}\n")
    if pauses is None or len(Path(started).read_text().split()) <= pauses:
        time.sleep(pause_s)
    await_gate(gate)
    return rows(**options)


def records(
    folder: str, batch_size: int = 10, workers: int = 1, segments: int = 4, **options: Any
) -> penstock.RecordSource:
    """Samples of the shard in a folder; see ``sample_of`` for options."""
    decode = functools.partial(sample_of, **options)
    return penstock.RecordSource(
        f"{folder}/*.tar", decode=decode, batch_size=batch_size, workers=workers, segments=segments
    )


def write_shard(folder: Path, samples: int) -> str:
    """Write a shard of so many samples, each its number; return the folder."""
    with tarfile.open(folder / "shard.tar", "w") as shard:
        for number in range(samples):
            text = str(number).encode()
            member = tarfile.TarInfo(f"{number:06}.txt")
            member.size = len(text)
            shard.addfile(member, io.BytesIO(text))
    return str(folder)


def sample_of(
    sample: dict[str, Any], pause_s: float = 0.0, width: int = 20_000, bad: int | None = None
) -> dict[str, Any]:
    """A sample, by its number.

    It is another one where the file that the environment's ``NODE_DATA`` names says so; sample ``bad`` cannot be
    decoded, nor can that which the environment's ``NODE_BAD`` names.
    """
    number = int(sample["txt"])
    time.sleep(pause_s)
    other = int(Path(os.environ["NODE_DATA"]).read_text()) if "NODE_DATA" in os.environ else 0
    if number in (bad, int(os.environ.get("NODE_BAD", "-1"))):
        raise ValueError(f"sample {number} cannot be decoded")
    return {"id": np.int64(number), "payload": payload_of([number + other], width)[0]}


def make(kind: str, **options: Any) -> Any:
    kinds = {
        "stream": stream,
        "rows": rows,
        "records": records,
        "rows beside a fake GPU": rows_beside_a_fake_gpu,
        "rows of an impatient feeder": rows_of_an_impatient_feeder,
        "rows of a quick pace": rows_of_a_quick_pace,
        "loader": loader,
        "paced": Paced,
        "blocking": Blocking,
        "changing": Changing,
        "failing": failing,
        "announcing": announcing,
        "empty": Empty,
        "unsupported": lambda: [{"id": np.arange(4), "bad": object()}],
    }
    return kinds[kind](**options)
