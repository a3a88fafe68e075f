"""Chooses samples by their scores: the best, the best of each class or target, or different ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import cycle

import numpy as np
import numpy.typing as npt

from penstock.basics.tracebacks import users_stacklevel
from penstock.contracts import Ids
from penstock.errors import BadSetting
from penstock.select.scores import Scores
from penstock.subsets.policy import count_of, pool_of
from penstock.subsets.selection import Selection

Rows = npt.NDArray[np.int64]
_DIGITS = 5


def top(scores: Scores, fraction: float, *, target: str | None = None) -> Selection:
    """Choose the best samples. Ties fall to the lower id.

    Args:
        scores: Scores.
        fraction: Part of the scored samples, above 0, at most 1.
        target: The target whose scores count; if None and there are several, they take the best left in turn.

    Raises:
        BadSetting: the fraction selects nothing, or there is no such target.

    Examples:
        >>> reported = penstock.select.ReportedLosses(4)
        >>> reported.report([0, 1, 2, 3], [0.5, 0.1, 0.9, 0.3])
        >>> penstock.select.top(reported.scores(direction="high"), 0.5).ids.tolist()
        [0, 2]
    """
    take = count_of(fraction, len(_scores(scores)))
    worth = scores.worth
    if target is not None:
        if target not in scores.header.targets:
            raise BadSetting(f"target={target!r}: these scores have {', '.join(scores.header.targets) or 'none'}")
        worth = worth[:, [scores.header.targets.index(target)]]
    return _selected(scores, _in_turn(worth, take))


def stratified(scores: Scores, fraction: float, groups: npt.ArrayLike) -> Selection:
    """Choose the best samples of each class, so that each class has the same part of the choice as of the data.

    Args:
        scores: Scores.
        fraction: Part of the scored samples, and nearly of each class, above 0, at most 1; one of each at least.
        groups: The class of each scored sample, in order of the ids, shape ``(n,)``.

    Raises:
        BadSetting: the fraction selects less than one of each class, or there is not one class for each sample.

    Examples:
        >>> reported = penstock.select.ReportedLosses(4)
        >>> reported.report([0, 1, 2, 3], [0.5, 0.9, 0.1, 0.3])
        >>> penstock.select.stratified(reported.scores(direction="high"), 0.5, [0, 0, 1, 1]).ids.tolist()
        [1, 3]
    """
    take = count_of(fraction, len(_scores(scores)))
    try:
        given = np.asarray(groups)
    except ValueError:
        raise BadSetting(f"groups: a {type(groups).__name__}: give the class of each sample, (n,)") from None
    if missing := int(np.count_nonzero((given != given) | (given == np.array(None)))):  # noqa: PLR0124  (NaN)
        raise BadSetting(f"groups: {missing:,} of {given.size:,} are NaN or None, and no class")
    if given.shape != (len(scores),):
        raise BadSetting(f"groups: shape {given.shape}, for {len(scores):,} scored samples: one class each")
    classes, sizes = np.unique(given, return_counts=True)
    if take < len(classes):
        raise BadSetting(f"fraction={fraction} selects {take:,} samples, and there are {len(classes):,} classes")
    chosen = list[Rows]()
    for group, count in zip(classes, _parts(sizes, take), strict=True):
        rows = np.flatnonzero(given == group)
        chosen.append(rows[_in_turn(scores.worth[rows], count)])
    return _selected(scores, np.concatenate(chosen))


def _scores(given: Scores) -> Scores:
    if not isinstance(given, Scores):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadSetting(f"scores: a {type(given).__name__}; give Scores, such as Scores.read(name, data)")
    return given


def _parts(sizes: npt.NDArray[np.int64], take: int) -> list[int]:
    """Divide a number of samples among classes by their sizes, to the largest remainders, one at least each."""
    exact = sizes * (take / sizes.sum())
    counts = np.maximum(1, np.floor(exact).astype(np.int64))
    while counts.sum() != take:
        step = 1 if counts.sum() < take else -1
        may = counts < sizes if step > 0 else counts > 1
        counts[np.where(may, step * (exact - counts), -np.inf).argmax()] += step
    return counts.tolist()


def diverse(embeddings: npt.ArrayLike, fraction: float, *, seed: int = 0) -> Selection:
    """Choose samples that differ: of near-duplicates, one.

    It takes the sample that is farthest from those taken, again and again.

    Source: Sener & Savarese, Active Learning for Convolutional Neural Networks (1708.00489): greedy k-center.

    Args:
        embeddings: A vector for each sample of the data set, shape ``(n, d)``.
        fraction: Part of the samples, above 0, at most 1.
        seed: Random seed of the first sample.

    Raises:
        BadSetting: these are no vectors, or the fraction selects nothing.

    Examples:
        >>> near_duplicates = np.array([[0.0, 0.0], [0.0, 0.1], [5.0, 5.0], [5.0, 5.1]])
        >>> chosen = penstock.select.diverse(near_duplicates, 0.5).ids
        >>> sorted(int(id) // 2 for id in chosen)
        [0, 1]
    """
    vectors = np.asarray(embeddings, np.float32)
    if vectors.ndim != 2:
        raise BadSetting(f"embeddings: shape {vectors.shape}: give numbers, (samples, length)")
    if (bad := np.flatnonzero(~np.isfinite(vectors).all(1))).size:
        raise BadSetting(
            f"embeddings: {len(bad):,} of {len(vectors):,} are not finite, the first is id {bad[0]:,}"
        )
    rows, _ = k_center(vectors, count_of(fraction, len(vectors)), seed)
    return pool_of(len(vectors)).part(rows)


def overlap(one: Selection, other: Selection) -> float:
    """Return the part of the smaller selection that is in the other one, from 0 to 1.

    Args:
        one: A selection.
        other: Another one, of the same data set.

    Examples:
        >>> penstock.select.overlap(penstock.Selection([1, 2, 3, 4]), penstock.Selection([3, 4, 5]))
        0.6666666666666666
    """
    return len(np.intersect1d(one.ids, other.ids)) / min(len(one), len(other))


def _in_turn(worth: npt.NDArray[np.float32], take: int) -> Rows:
    """Return the best rows; several targets take turns, each with the best that is left."""
    orders = np.argsort(-worth, axis=0, kind="stable")
    if orders.shape[1] == 1:
        return orders[:take, 0]
    targets = [iter(order) for order in orders.T.tolist()]
    taken: dict[int, None] = {}
    for target in cycle(targets):
        if len(taken) == take:
            return np.array([*taken])
        taken[next(row for row in target if row not in taken)] = None
    raise AssertionError("cycle ends never")


def _selected(scores: Scores, rows: Rows) -> Selection:
    ids: Ids = scores.ids[rows]
    if scores.classes is not None and (lost := np.setdiff1d(scores.classes, scores.classes[rows])).size:
        more = f", and of {len(lost) - 1:,} more" if len(lost) > 1 else ""
        warnings.warn(
            f"these {len(rows):,} of {len(scores):,} samples by {scores.header.method} hold none of class "
            f"{lost[0]} ({np.count_nonzero(scores.classes == lost[0]):,} samples){more}: stratified(scores, "
            "fraction, labels) selects a part of each",
            stacklevel=users_stacklevel(),
        )
    return Selection(ids) if len(scores) < scores.header.data.samples else pool_of(len(scores)).part(ids)


def k_center(
    vectors: npt.NDArray[np.float32], take: int, seed: int, progress: Callable[[str, int, int], None] | None = None
) -> tuple[Rows, npt.NDArray[np.float32]]:
    """Return rows in the greedy order: each is the farthest from those before it, the first is drawn.

    Also return the square of each row's distance from the nearest of them; -inf for those. It is relative to the
    longest vector's square and rounded to 5 digits, since the last bits depend on the processor; of equal ones,
    the lower row comes first.
    """
    first = int(np.random.default_rng(seed).integers(len(vectors)))
    vectors = vectors / max(float(np.linalg.norm(vectors, axis=1).max()), 1e-12)
    squares = np.einsum("nd,nd->n", vectors, vectors)
    distances = np.full(len(vectors), np.inf, np.float32)
    rows = np.empty(take, np.int64)
    for i in range(take):
        rows[i] = first if i == 0 else int(distances.argmax())
        row = rows[i]
        now = squares + squares[row] - 2 * (vectors @ vectors[row])
        np.minimum(distances, now.round(_DIGITS), out=distances)
        distances[row] = -np.inf
        if progress:
            progress("put in order", i + 1, take)
    return rows, distances
