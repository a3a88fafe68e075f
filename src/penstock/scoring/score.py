"""Scores the samples of a task by a method, and keeps what that cost."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, cast

import msgspec
import numpy as np

from penstock.contracts import Ids
from penstock.errors import BadSetting, PenstockError
from penstock.feed.trainer.loader import Loader
from penstock.measure.machine import describe
from penstock.scoring.header import ScoresHeader
from penstock.scoring.meter import metered
from penstock.scoring.methods.diverse import Diverse
from penstock.scoring.methods.el2n import El2n
from penstock.scoring.methods.less import Less
from penstock.scoring.methods.rds import Rds
from penstock.scoring.methods.sketch import Sketch
from penstock.scoring.scorer import Progress, Scored, Scorer
from penstock.scoring.scores import Scores
from penstock.scoring.task import Task
from penstock.sources.seeds import own_random_numbers

METHODS: dict[str, type[msgspec.Struct]] = {
    "diverse": Diverse,
    "el2n": El2n,
    "less": Less,
    "rds": Rds,
    "sketch": Sketch,
}
"""Methods of Penstock's own, by name; the attributes of each are its settings."""


def score(
    task: Task, method: str | Scorer, *, seed: int = 0, progress: Progress | None = None, **settings: Any
) -> Scores:
    """Score each sample of a task's data.

    Args:
        task: Data and model.
        method: ``"diverse"``, ``"el2n"``, ``"less"``, ``"rds"``, ``"sketch"``, or a Scorer of your own.
        seed: Random seed of all that is random.
        progress: Told what is done, how many steps of it, and of how many.
        settings: Attributes of the method, by name; as text, too.

    Returns:
        The scores, with what they cost.

    Raises:
        BadSetting: there is no such method or setting, or the task lacks what the method needs.
    """
    if not isinstance(task, Task):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadSetting(f"task: a {type(task).__name__}: give a penstock.select.Task")
    scorer = method_of(method, settings)
    with metered() as meter, own_random_numbers(seed), _selection_kept(task.data):
        data = task.identity()
        scored = scorer.score(task, seed, progress or _silent)
    if not isinstance(scored, Scored):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadSetting(f"{scorer.name}: score() returned a {type(scored).__name__}, and no select.Scored")
    header = ScoresHeader(
        data=data,
        ids_digest="",
        method=scorer.name,
        method_version=scorer.version,
        settings={name: str(getattr(scorer, name)) for name in getattr(scorer, "__struct_fields__", ())},
        checkpoint=scored.checkpoint,
        seed=seed,
        direction=scorer.direction,
        targets=scored.targets,
        cost=meter.cost,
        machine=describe(),
    )
    ids: Ids = np.arange(task.samples)
    return Scores(ids, scored.values, header, embeddings=scored.embeddings)


def method_of(method: str | Scorer, settings: dict[str, Any]) -> Scorer:
    """Return the method of a name, with its settings.

    Raises:
        BadSetting: there is none, or it has no such setting.
    """
    if not isinstance(method, str):
        if isinstance(method, type):
            raise BadSetting(f"{method.__name__} is a class: give a Scorer made of it, {method.__name__}()")
        if settings:
            raise BadSetting(f"{', '.join(settings)}: settings belong to methods by name; set them in your Scorer")
        return method
    if method not in METHODS:
        raise BadSetting(f"there is no method {method!r}; there are {', '.join(METHODS)}")
    kind = METHODS[method]
    if unknown := sorted(set(settings) - set(kind.__struct_fields__)):
        raise BadSetting(f"{method} has no setting {unknown[0]}; it has {', '.join(kind.__struct_fields__)}")
    try:
        return cast("Scorer", msgspec.convert(settings, kind, strict=False))
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        raise BadSetting(f"{method}: {where.rstrip('`')}: {what[:1].lower()}{what[1:]}") from None


@contextmanager
def _selection_kept(data: Any) -> Generator[None]:
    """Let a feed's Loader select afterwards what it selected before."""
    before = data.selected if isinstance(data, Loader) else None
    try:
        yield
    finally:
        if isinstance(data, Loader):
            with suppress(PenstockError):  # a feed that has ended selects nothing
                data.select(before)


def _silent(what: str, done: int, total: int) -> None:
    pass
