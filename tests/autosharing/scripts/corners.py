"""What scripts do now and then, one function each. Prints, as JSON, what it saw of each epoch."""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import penstock

N = 12
kept: list[Any] = []


class Rows(Dataset[int]):
    scale = 1

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> int:
        return i


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(N))


def listed(samples: list[int]) -> dict[str, Any]:
    return {"id": torch.tensor(samples), "many": len(samples)}


def sizes(loader: Any) -> list[int]:
    return [len(batch["id"]) for batch in loader]


def ids(loader: Any) -> list[int]:
    return [i for batch in loader for i in batch.tolist()]


def stream() -> Any:
    loader = DataLoader(Stream(), 4)
    return [ids(loader) for _ in range(2)]


def stream_that_drops() -> Any:
    loader = DataLoader(Stream(), 5, drop_last=True, collate_fn=listed)
    return [sizes(loader) for _ in range(2)]


def persistent() -> Any:
    """Its workers live on; one pass validates on the training loader; then the data set gets a lock."""
    loader = DataLoader(Rows(), 4, shuffle=True, num_workers=1, persistent_workers=True)
    seen = [ids(loader)]
    with torch.no_grad():
        seen.append(ids(loader))
    before = shared()
    seen.append(ids(loader))
    until_s = time.monotonic() + 60
    while shared() <= before and time.monotonic() < until_s:  # what it read may have lain there before
        time.sleep(0.01)
    assert shared() > before
    loader.dataset.lock = threading.Lock()  # type: ignore[attr-defined]
    return [*seen, ids(loader), ids(loader)]


def validates_first() -> Any:
    """Its first pass over the training loader is a validation, and the loader keeps its iterator."""
    loader = DataLoader(Rows(), 4, shuffle=True, num_workers=1, persistent_workers=True)
    with torch.inference_mode():
        seen = [ids(loader)]
    assert not penstock.feeds()
    seen += [ids(loader), ids(loader)]
    assert shared() >= 2 * N
    return seen


def stopped() -> Any:
    """Its feed is stopped by hand. An epoch later, or two if one was made already, there is one again."""
    loader = DataLoader(Rows(), 4, shuffle=True)
    seen = [ids(loader)]
    for feed in penstock.feeds():
        penstock.stop(feed.name)
    for _ in range(3):
        with suppress(penstock.errors.FeedStopped):  # in mid-epoch
            seen.append(ids(loader))
    assert penstock.feeds()
    return seen


def stopped_each_time() -> Any:
    """Its data change, and change back after their feed has ended."""
    loader, seen = DataLoader(Rows(), 4, shuffle=True), []
    for scale in (1, 2, 1):
        loader.dataset.scale = scale  # type: ignore[attr-defined]
        seen.append(ids(loader))
        for feed in penstock.feeds():
            penstock.stop(feed.name)
    return seen


def dtype() -> Any:
    """Its data set makes numbers of torch's default type, which the script has set."""
    torch.set_default_dtype(torch.float64)

    class Halves(Rows):
        def __getitem__(self, i: int) -> Any:
            return torch.tensor(i / 2)

    return [str(batch.dtype) for batch in DataLoader(Halves(), 4, shuffle=True)]


def strict(workers: str) -> Any:
    """Has a process that is strict, which one row of its data set shows."""
    import builtins
    import decimal
    import warnings

    import numpy as np

    np.seterr(all="raise")
    decimal.getcontext().prec = 3
    sys.set_int_max_str_digits(0)
    warnings.simplefilter("error")
    builtins.HUNDRED = 100  # type: ignore[attr-defined]

    class Shown(Rows):
        def __getitem__(self, i: int) -> Any:
            if i != N - 1:
                return 0
            found = len(str(10**5000)) + len(str(decimal.Decimal(1) / 3)) + HUNDRED  # type: ignore[name-defined]  # noqa: F821
            try:
                np.ones(1) / np.zeros(1)
            except FloatingPointError:
                found += 10_000
            try:
                warnings.warn("it is the last row", stacklevel=1)
            except UserWarning:
                found += 20_000
            return found

    loader = DataLoader(Shown(), 4, shuffle=True, num_workers=int(workers))
    return [sum(ids(loader)) for _ in range(3)]


def own_generator() -> Any:
    """Its data set draws from a generator of its own."""

    class Noise(Rows):
        draws = torch.Generator().manual_seed(1)

        def __getitem__(self, i: int) -> Any:
            return torch.rand(1, generator=self.draws, dtype=torch.float64)

    loader = DataLoader(Noise(), 4, shuffle=True, num_workers=1)
    return [x for _ in range(3) for batch in loader for x in batch.flatten().tolist()]


def raises() -> Any:
    """Catches what its data set raises."""

    class Broken(Rows):
        def __getitem__(self, i: int) -> int:
            if i == 3:
                raise ValueError("row 3 is broken")
            return i

    loader = DataLoader(Broken(), 1, shuffle=True, num_workers=1)
    seen: list[list[int]] = []
    for _ in range(3):
        seen.append([])
        iterator = iter(loader)
        for _ in range(2 * N):
            try:
                seen[-1] += next(iterator).tolist()
            except ValueError:
                continue
            except StopIteration:
                break
    return seen


def relabels() -> Any:
    """Changes labels where they lie, between epochs."""

    class Labelled(Rows):
        def __init__(self) -> None:
            self.labels = dict.fromkeys(range(1000), 0)

        def __getitem__(self, i: int) -> int:
            return self.labels[i]

    loader = DataLoader(Labelled(), 4, shuffle=True)
    seen = []
    for epoch in range(2):
        seen.append(ids(loader))
        loader.dataset.labels.update((i, epoch + 1) for i in range(N))  # type: ignore[attr-defined]
    return seen


def relabels_behind_workers() -> Any:
    """Changes labels where workers that persist do not see it."""

    class Labelled(Rows):
        label = 0

        def __init__(self) -> None:
            self.label = 0

        def __getitem__(self, i: int) -> int:
            return self.label

    loader = DataLoader(Labelled(), 4, shuffle=True, num_workers=1, persistent_workers=True)
    seen = []
    for epoch in range(3):
        seen.append(ids(loader))
        loader.dataset.label = epoch + 1  # type: ignore[attr-defined]
    return seen


def writes_to_a_map() -> Any:
    """Writes labels to a file that it has mapped, between epochs."""
    import numpy as np

    class Mapped(Rows):
        def __init__(self) -> None:
            self.labels = np.memmap("labels", np.int64, "w+", shape=(N,))

        def __getitem__(self, i: int) -> int:
            return int(self.labels[i])

    loader = DataLoader(Mapped(), 4, shuffle=True)
    seen = []
    for epoch in range(3):
        seen.append(ids(loader))
        loader.dataset.labels[:] = epoch + 1  # type: ignore[attr-defined]
    return seen


def look() -> Any:
    """Ends with a look at a batch that is still there."""
    kept.append(iter(DataLoader(Rows(), 4, shuffle=True)))
    return len(next(kept[0]))


def looks_on() -> Any:
    """Looks at a batch, reads many epochs, and then the rest of the first. Who read the look's feed meanwhile?"""
    loader = DataLoader(Rows(), 4, shuffle=True)
    look = iter(loader)
    first = next(look).tolist()
    seen = [ids(loader) for _ in range(12)]
    readers = [len(feed.trainers) for feed in penstock.feeds()]
    return [*seen, first + ids(look)], readers


def thread() -> Any:
    seen: list[Any] = []
    reads = threading.Thread(target=lambda: seen.append(ids(DataLoader(Rows(), 4, shuffle=True))))
    reads.start()
    reads.join()
    return seen


def anew() -> Any:
    """Makes its loader anew for each epoch, whose data differ."""
    seen = []
    for epoch in range(2):
        data = Rows()
        data.scale = epoch + 1
        seen.append(ids(DataLoader(data, 4, shuffle=True)))
    return [*seen, [expected(feed.name) for feed in penstock.feeds()]]


def expected(name: str) -> int:
    with penstock.attach(name) as loader:
        return loader._rows.connection.welcome.settings.expect


def shared() -> int:
    """How many samples the feeds have made."""
    return sum(feed.samples for feed in penstock.feeds())


if __name__ == "__main__":
    torch.manual_seed(1)
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
