"""Which samples to train on: scores of samples, choices by them, and policies for each epoch.

Names are loaded when first used: only scoring needs torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.select.choices import diverse as diverse
    from penstock.select.choices import overlap as overlap
    from penstock.select.choices import stratified as stratified
    from penstock.select.choices import top as top
    from penstock.select.in_training import ReportedLosses as ReportedLosses
    from penstock.select.in_training import TrainingPlan as TrainingPlan
    from penstock.select.in_training import plan_of_run as plan_of_run
    from penstock.select.methods import Scored as Scored
    from penstock.select.methods import Scorer as Scorer
    from penstock.select.scores import Scores as Scores
    from penstock.select.scoring import score as score
    from penstock.select.task import Task as Task
    from penstock.subsets.infobatch import InfoBatch as InfoBatch
    from penstock.subsets.policy import AnnealToFull as AnnealToFull
    from penstock.subsets.policy import Fixed as Fixed
    from penstock.subsets.policy import Policy as Policy
    from penstock.subsets.policy import RandomSubsets as RandomSubsets
    from penstock.subsets.policy import TemperatureSampling as TemperatureSampling

_HOMES = {
    "diverse overlap stratified top": "penstock.select.choices",
    "ReportedLosses TrainingPlan plan_of_run": "penstock.select.in_training",
    "Scored Scorer": "penstock.select.methods",
    "Scores": "penstock.select.scores",
    "score": "penstock.select.scoring",
    "Task": "penstock.select.task",
    "InfoBatch": "penstock.subsets.infobatch",
    "AnnealToFull Fixed Policy RandomSubsets TemperatureSampling": "penstock.subsets.policy",
}
_HOME_OF = {name: home for names, home in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'penstock.select' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return [*_HOME_OF]
