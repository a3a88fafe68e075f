"""Draws things that hold things, and changes one of them: ``python fuzz.py SEEDS`` prints a digest of their names.

Run by ``test_fuzz.py`` in processes of different hash seeds.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.fingerprint.objects import fingerprint_of_objects


class Thing:
    pass


class Slots:
    __slots__ = ("held", "value")


def one(x: Any) -> Any:
    return x


def other(x: Any) -> Any:
    return x + 1


def value(draw: random.Random) -> Any:
    kinds = (
        lambda: draw.randint(-(2**70), 2**70),
        lambda: draw.randint(-5, 5),
        draw.random,
        lambda: str(draw.random())[: draw.randint(0, 6)],
        lambda: draw.random() < 0.5,
        lambda: None,
        lambda: draw.randbytes(draw.randint(0, 5)),
        lambda: np.int64(draw.randint(0, 9)),
        lambda: np.float32(draw.random()),
        lambda: Path(str(draw.randint(0, 99))),
    )
    return draw.choice(kinds)()


class Drawn:
    """Things of one seed, all reached from ``root``."""

    def __init__(self, seed: int) -> None:
        self.places: list[Any] = []  # what can be changed
        self._draw = random.Random(seed)
        self._shared: list[Any] = []
        self.root = Thing()
        self.root.held = [self._thing(4) for _ in range(3)]

    def _thing(self, depth: int) -> Any:
        draw = self._draw
        kind = draw.randint(-2, 9) if depth else -1
        if kind < 0:
            return value(draw)
        count = draw.choice([0, 1, 2, 2, 3, 5]) if draw.random() < 0.95 else draw.choice([70, 200])
        made = self._of_kind(kind, count, depth - 1 if count < 10 else 0)
        if self._shared and draw.random() < 0.1:  # it is held twice, maybe by what it holds
            holder = draw.choice(self._shared)
            if isinstance(holder, list):
                holder.append(made)
            elif isinstance(holder, dict):
                holder[f"shared {len(holder)}"] = made
            else:
                setattr(holder, f"shared_{len(vars(holder))}", made)
        return made

    def _of_kind(self, kind: int, count: int, depth: int) -> Any:
        draw = self._draw
        if kind == 0:
            return tuple(self._thing(depth) for _ in range(count))
        if kind == 1:
            return functools.partial(draw.choice([one, other]), self._thing(depth), key=self._thing(0))
        if kind == 2:
            held = self._thing(depth)
            return self._changeable(lambda: held)
        if kind == 3:
            slots = Slots()
            slots.held, slots.value = self._thing(depth), value(draw)
            return self._changeable(slots)
        if kind == 4:
            width = 20_000 if draw.random() < 0.05 else 3
            array = np.random.default_rng(draw.randint(0, 9)).random((count + 1, width))
            return self._changeable(array.T if draw.random() < 0.3 else array)
        if kind == 5:
            types = [torch.float32, torch.bfloat16, torch.int64, torch.uint8]
            return self._changeable(torch.arange(count * 3 + 1).to(draw.choice(types)))
        if kind == 6:
            items = (draw.choice([str(draw.random())[:5], (draw.randint(0, 99), "a")]) for _ in range(count))
            return self._changeable(set(items))
        made: Any = [Thing(), [], {}][kind - 7]
        self._shared.append(self._changeable(made))
        if kind == 7:
            vars(made).update({f"a{i}": self._thing(depth) for i in range(count)})
        elif kind == 8:
            made.extend([self._thing(depth) for _ in range(count)])
        else:
            for i in range(count):
                made[(value(draw), i) if draw.random() < 0.2 else f"k{i}"] = self._thing(depth)
        return made

    def _changeable(self, thing: Any) -> Any:
        self.places.append(thing)
        return thing

    def change(self) -> None:
        """Give one value, item or attribute anywhere another value."""
        draw = self._draw
        place = draw.choice([*self.places, self.root])
        if isinstance(place, set):
            place.add(("new", draw.random()))
        elif isinstance(place, Slots):
            place.value = self._unlike(place.value)
        elif isinstance(place, (np.ndarray, torch.Tensor)):
            where = tuple(draw.randrange(length) for length in place.shape)
            place[where] = 0 if place[where] else 1
        elif isinstance(place, list):
            if place:
                i = draw.randrange(len(place))
                place[i] = self._unlike(place[i])
            else:
                place.append(value(draw))
        elif isinstance(place, (dict, Thing)):
            held = place if isinstance(place, dict) else vars(place)
            name = draw.choice([*held, "new"])
            held[name] = self._unlike(held.get(name, Thing()))
        else:
            place.__closure__[0].cell_contents = self._unlike(place.__closure__[0].cell_contents)

    def _unlike(self, old: Any) -> Any:
        return next(new for new in self._values() if (type(new), repr(new)) != (type(old), repr(old)))

    def _values(self) -> Iterator[Any]:
        while True:
            yield value(self._draw)


def name_of(drawn: Drawn) -> str:
    return fingerprint_of_objects({"dataset": drawn.root}).digest


def digest_of_names(seeds: int) -> str:
    return hashlib.sha256("".join(name_of(Drawn(seed)) for seed in range(seeds)).encode()).hexdigest()
