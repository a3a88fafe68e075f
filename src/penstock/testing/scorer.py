"""The contract of a scorer: one number a sample or one a target, that follow from task and seed."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod

import numpy as np
import torch

from penstock.select.methods import Scorer
from penstock.select.scoring import score
from penstock.select.task import Task


class ScorerContract(ABC):
    """Tests of a scorer; a subclass named ``Test...`` runs them."""

    @abstractmethod
    def make(self) -> tuple[Scorer, Task]:
        """Make the scorer, and a task of a few dozen samples that it can score."""

    def test_it_has_a_name_a_version_and_a_direction(self) -> None:
        scorer, _ = self.make()
        assert isinstance(scorer, Scorer)
        assert scorer.name and scorer.version
        assert scorer.direction in ("high", "low")

    def test_each_sample_has_a_finite_score_for_each_target(self) -> None:
        scorer, task = self.make()
        scores = score(task, scorer)
        assert scores.ids.tolist() == list(range(task.samples))
        assert scores.values.shape == (task.samples, max(1, len(scores.header.targets)))
        assert np.isfinite(scores.values).all() and np.unique(scores.values).size > 1

    def test_one_seed_gives_one_result_whatever_the_process_has_drawn(self) -> None:
        scorer, task = self.make()
        first = score(task, scorer, seed=3)
        _ = random.random(), np.random.random(), torch.rand(1)
        scorer, task = self.make()
        again = score(task, scorer, seed=3)
        assert np.array_equal(first.values, again.values)
        assert first.header.checkpoint == again.header.checkpoint

    def test_what_it_cost_and_of_which_data_it_is_are_kept(self) -> None:
        scorer, task = self.make()
        header = score(task, scorer).header
        assert header.method == scorer.name and header.method_version == scorer.version
        assert header.data.samples == task.samples
        assert header.cost.seconds > 0 and header.cost.cpu_s > 0
