"""Which samples to train on: scores of samples, choices by them, and policies for each epoch.

Names are loaded when first used: only scoring needs torch.
"""

# ruff: noqa: PLC0414  (a name that is imported as itself is public)
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.scoring.choose import diverse as diverse
    from penstock.scoring.choose import overlap as overlap
    from penstock.scoring.choose import stratified as stratified
    from penstock.scoring.choose import top as top
    from penstock.scoring.losses import ReportedLosses as ReportedLosses
    from penstock.scoring.of_run import TrainingPlan as TrainingPlan
    from penstock.scoring.of_run import plan_of_run as plan_of_run
    from penstock.scoring.score import score as score
    from penstock.scoring.scorer import Scored as Scored
    from penstock.scoring.scorer import Scorer as Scorer
    from penstock.scoring.scores import Scores as Scores
    from penstock.scoring.task import Task as Task
    from penstock.selection.infobatch import InfoBatch as InfoBatch
    from penstock.selection.policy import AnnealToFull as AnnealToFull
    from penstock.selection.policy import Fixed as Fixed
    from penstock.selection.policy import Policy as Policy
    from penstock.selection.policy import RandomSubsets as RandomSubsets
    from penstock.selection.policy import TemperatureSampling as TemperatureSampling

_HOMES = {
    **dict.fromkeys(("diverse", "overlap", "stratified", "top"), "penstock.scoring.choose"),
    "ReportedLosses": "penstock.scoring.losses",
    **dict.fromkeys(("TrainingPlan", "plan_of_run"), "penstock.scoring.of_run"),
    "score": "penstock.scoring.score",
    **dict.fromkeys(("Scored", "Scorer"), "penstock.scoring.scorer"),
    "Scores": "penstock.scoring.scores",
    "Task": "penstock.scoring.task",
    "InfoBatch": "penstock.selection.infobatch",
    **dict.fromkeys(
        ("AnnealToFull", "Fixed", "Policy", "RandomSubsets", "TemperatureSampling"), "penstock.selection.policy"
    ),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock.select' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return [*_HOMES]
