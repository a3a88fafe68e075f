"""What scores were computed from: the identity of a data set, the method, and the cost."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import msgspec
import numpy as np

from penstock._version import __version__
from penstock.basics.terminal import listed
from penstock.errors import BadSetting
from penstock.runs.machine import Machine
from penstock.select.meter import Cost
from penstock.sources.seeds import own_random_numbers

_PROBED = 64
_MOST_S = 10.0


class DataIdentity(msgspec.Struct, frozen=True):
    """What distinguishes a data set from others."""

    samples: int
    content: dict[str, str] = {}
    """Digests of what the parts of 64 samples, spread evenly, hold, by the name of the part; without parts that
    differ when they are read twice, such as augmented images."""
    drawn: dict[str, str] = {}  # digests of those parts, as one state of the random generators makes them
    every: dict[str, str] = {}
    """Digests of the parts of ``content`` of all samples; empty where reading them takes too long."""

    def difference(self, now: DataIdentity) -> str:
        """Describe how another data set differs; empty if that cannot be seen."""
        if self.samples != now.samples:
            return f"{self.samples:,} samples then, {now.samples:,} now"
        if self.content and now.content and self.content.keys().isdisjoint(now.content):
            return f"its samples have parts{_named([*self.content])} then, and{_named([*now.content])} now"
        few = min(_PROBED, self.samples)
        for count, then, its in ((few, self.content, now.content), (self.samples, self.every, now.every)):
            if parts := [name for name, found in then.items() if its.get(name, found) != found]:
                return (
                    f"its samples hold other values{_named(parts)}, or stand in another order: {count:,} of "
                    f"{self.samples:,} were compared"
                )
        return ""

    def uncompared(self, now: DataIdentity) -> str:
        """Describe what may differ unseen, as it is random or takes long to read; empty if nothing does."""
        then, its = self.content.keys() | self.drawn.keys(), now.content.keys() | now.drawn.keys()
        left = [
            name
            for name in sorted(then & its & (self.drawn.keys() | now.drawn.keys()))
            if name not in self.drawn or self.drawn[name] != now.drawn.get(name)
        ]
        if left:
            return (
                f"the samples' parts{_named(left)} are random, and were not compared. Score a data set without "
                "augmentation, and read the scores with that one"
            )
        if self.content and not (self.every and now.every) and self.samples > _PROBED:
            return f"{_PROBED} of {self.samples:,} samples were compared, since reading all takes too long"
        return ""


def identity_of(data: Any) -> DataIdentity:
    """Read 64 samples of a map-style data set twice, with two states of the global random generators.

    All are read where that takes seconds. The data set's object is not compared: its files may have changed.
    """
    try:
        count = len(data)
    except TypeError:
        raise BadSetting(
            f"a {type(data).__name__} has no length: scores are of a data set with data[id] and len(data)"
        ) from None
    few = np.unique(np.linspace(0, count - 1, min(count, _PROBED)).astype(np.int64)).tolist()
    once = _digests(data, few, seed=1)
    began_s = time.perf_counter()
    again = _digests(data, few, seed=2)
    all_s = (time.perf_counter() - began_s) * count / max(1, len(few))
    content = {name: digest for name, digest in once.items() if again.get(name) == digest}
    drawn = {name: once[name] for name in once.keys() - content.keys()}
    every = _digests(data, range(count), seed=1, only=content) if content and all_s <= _MOST_S else {}
    return DataIdentity(count, content, drawn, every)


def _digests(data: Any, ids: Iterable[int], seed: int, only: Container[str] | None = None) -> dict[str, str]:
    digests: dict[str, Any] = {}
    with own_random_numbers(seed):
        for id in ids:
            for name, content in _parts("", data[id]):
                if only is None or name in only:
                    digests.setdefault(name, hashlib.sha256()).update(content)
    return {name: digest.hexdigest()[:16] for name, digest in digests.items()}


def _parts(name: str, value: Any) -> Iterator[tuple[str, bytes]]:
    """Yield the parts of a sample that are text or numbers; others are skipped."""
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[Any, Any]", value).items():
            yield from _parts(f"{name}[{key!r}]", item)
    elif isinstance(value, str | bytes):
        content = value.encode(errors="surrogatepass") if isinstance(value, str) else value
        yield name, type(value).__name__.encode() + content
    elif isinstance(value, Sequence):
        for place, item in enumerate(cast("Sequence[Any]", value)):
            yield from _parts(f"{name}[{place}]", item)
    else:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            value = value.float() if str(value.dtype) == "torch.bfloat16" else value  # which NumPy has not
        array = np.asarray(value)
        if array.dtype.kind in "biufcSU":
            yield name, f"{array.shape} {array.dtype.str}".encode() + array.tobytes()


def _named(parts: list[str]) -> str:
    names = [part for part in parts if part]
    return f" in {listed(names, 5)}" if names else ""


Direction = Literal["high", "low"]
FORMAT = 2
"""Of format 1, images in a feed had other ids: theirs is the order of torchvision's ImageFolder now."""


class ScoresHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What scores were computed from, how, and at what cost.

    Attributes:
        data: Identity of the data set.
        ids_digest: Digest of the ids that were scored, in order.
        method: Name of the method.
        method_version: Its version: another one's scores may differ.
        settings: What the method was asked, as text.
        checkpoint: Digest of the model's parameters that scored; empty if no model did.
        seed: Random seed.
        direction: Which scores are worth more: "high" or "low".
        targets: Names of the tasks that there is a score for; empty if there is one number a sample.
        cost: What computing them cost.
        machine: Where they were computed.
    """

    data: DataIdentity
    ids_digest: str
    method: str
    method_version: str
    settings: dict[str, str] = {}
    checkpoint: str = ""
    seed: int = 0
    direction: Direction = "high"
    targets: tuple[str, ...] = ()
    cost: Cost
    machine: Machine
    format: int = FORMAT
    penstock: str = __version__

    @property
    def asked(self) -> str:
        """The settings of the method, for a person."""
        return ", ".join(f"{name} {value}" for name, value in self.settings.items())
