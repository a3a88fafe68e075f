"""Scores the samples of a task by a method, and measures what that costs."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from penstock.basics.results import progress as shown_progress
from penstock.basics.terminal import console, say
from penstock.errors import BadSetting, PenstockError, Untravelled
from penstock.feed.trainer.loader import Loader
from penstock.runs.machine import describe
from penstock.select.embedding_methods import Diverse, Rds
from penstock.select.gradient_methods import El2n, Less, Sketch
from penstock.select.identity import ScoresHeader
from penstock.select.meter import CostMeter, metered
from penstock.select.methods import Progress, Scored, Scorer
from penstock.select.scores import Scores
from penstock.select.steps import Steps, steps_in
from penstock.select.task import Task
from penstock.sources.seeds import own_random_numbers

METHODS: dict[str, type[msgspec.Struct]] = {each.name: each for each in (Diverse, El2n, Less, Rds, Sketch)}
"""Methods of Penstock's own, by name; the attributes of each are its settings."""


def score(
    task: Task,
    method: str | Scorer,
    *,
    seed: int = 0,
    progress: Progress | None = None,
    keep: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Scores:
    """Score each sample of a task's data.

    Args:
        task: Data and model.
        method: ``"diverse"``, ``"el2n"``, ``"less"``, ``"rds"``, ``"sketch"``, or a Scorer of your own.
        seed: Random seed of all that is random.
        progress: Called with what is done, the steps done and all steps; unless given, a terminal shows a bar.
        keep: Folder that keeps each finished step, such as a trained model: a scoring that was interrupted goes on
            from there when it is begun again. Delete it once the scores are saved.
        settings: Attributes of the method, by name; as text, too.

    Returns:
        The scores, with what they cost.

    Raises:
        BadSetting: there is no such method or setting, the task lacks what the method needs, or the folder is
            another scoring's.

    Examples:
        >>> import torch
        >>> data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.arange(64) % 2)
        >>> task = penstock.select.Task(data=data, make_model=lambda: torch.nn.Linear(8, 2))
        >>> penstock.select.score(task, "el2n", epochs=1).values.shape
        (64, 1)
    """
    if not isinstance(task, Task):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadSetting(f"task: a {type(task).__name__}: give a penstock.select.Task")
    scorer = method_of(method, settings)
    with nullcontext() if keep is None else steps_in(Path(keep)) as steps, metered() as meter:
        return scored(task, scorer, seed, progress, meter, steps)


def scored(
    task: Task,
    scorer: Scorer,
    seed: int,
    progress: Progress | None,
    meter: CostMeter,
    steps: Steps | None,
    *,
    anew: bool = False,
) -> Scores:
    """Score each sample, as ``score`` does; the meter has its cost.

    Kept steps of another scoring are refused, or, if ``anew``, deleted.
    """
    if isinstance(task.data, Loader):
        meter.count_feeder(task.data.statistics().feeder_pid)
    settings = {name: str(getattr(scorer, name)) for name in getattr(scorer, "__struct_fields__", ())}
    shown = _bar() if progress is None else nullcontext(progress)
    with shown as tell, own_random_numbers(seed), _selection_restored(task.data):
        data = task.identity()
        if steps is not None:
            of = {"data": str(data), "method": f"{scorer.name} {scorer.version}", "settings": str(settings)}
            try:
                steps.begin(of | {"seed": str(seed), "task": task.fingerprint()}, meter, anew=anew)
            except Untravelled as error:
                say(f"no steps of this scoring are kept, since it cannot be identified: {error}")
        found = scorer.score(task, seed, tell)
    if not isinstance(found, Scored):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadSetting(f"{scorer.name}: score() returned a {type(found).__name__}, and no select.Scored")
    if isinstance(task.data, Loader):
        meter.count_feeder(task.data.statistics().feeder_pid)  # another one, if the first has ended
    header = ScoresHeader(
        data=data,
        ids_digest="",
        method=scorer.name,
        method_version=scorer.version,
        settings=settings,
        checkpoint=found.checkpoint,
        seed=seed,
        direction=scorer.direction,
        targets=found.targets,
        cost=meter.cost if steps is None else steps.before + meter.cost,
        machine=describe(),
    )
    return Scores(np.arange(task.samples), found.values, header, classes=task.classes())


def method_of(method: str | Scorer, settings: dict[str, Any]) -> Scorer:
    """Return the method of a name, with its settings."""
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
def _selection_restored(data: Any) -> Generator[None]:
    """Let a feed's Loader select afterwards what it selected before."""
    before = data.selected if isinstance(data, Loader) else None
    try:
        yield
    finally:
        if isinstance(data, Loader):
            with suppress(PenstockError):  # a feed that has ended selects nothing
                data.select(before)


@contextmanager
def _bar() -> Generator[Progress]:
    """Show progress on a terminal."""
    with shown_progress(console(stderr=True)) as tell:
        yield lambda what, done, total: tell(done, total, what)
