"""Keeps the metrics that an unmodified script logs with other libraries, whose calls do what they did.

What a library has taken is kept. Where two of them get one name, the first that got it counts.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, cast

from penstock.basics.terminal import say
from penstock.linux.fork import importing

_TORCH = "torch.utils.tensorboard.writer"
_CALLS = (
    ("mlflow.tracking.fluent", "", "log_metric", ("key", "value", "step")),
    ("mlflow.tracking.fluent", "", "log_metrics", ("", "metrics", "step")),
    ("mlflow.tracking.client", "MlflowClient", "log_metric", ("key", "value", "step")),
    ("mlflow.tracking.client", "MlflowClient", "log_batch", ("", "metrics", "")),
    ("radt.run.benchmark", "RADTBenchmark", "log_metric", ("name", "value", "epoch")),
    ("radt.run.benchmark", "RADTBenchmark", "log_metrics", ("", "metrics", "epoch")),
    ("wandb.sdk.wandb_run", "Run", "log", ("", "data", "step")),
    (_TORCH, "SummaryWriter", "add_scalar", ("tag", "scalar_value", "global_step")),
    (_TORCH, "SummaryWriter", "add_scalars", ("main_tag", "tag_scalar_dict", "global_step")),
    ("tensorboardX.writer", "SummaryWriter", "add_scalar", ("tag", "scalar_value", "global_step")),
    ("tensorboardX.writer", "SummaryWriter", "add_scalars", ("main_tag", "tag_scalar_dict", "global_step")),
)
"""What takes metrics: its module, its class if it is a method, its name, and its parameters for a metric's name
(if the values have none), for the values, and for the step (if the values have none)."""
_inside = threading.local()
_libraries: dict[str, str] = {}  # which one logs a name
_told: set[str] = set()


def hooked(module: ModuleType) -> None:
    """Keep what is logged through a module of one of these libraries, which has just been imported.

    Raises:
        AttributeError: it lacks what every version that is known has.
    """
    if module.__name__ == "wandb.sdk.wandb_init":
        vars(module)["init"] = _disabled_too(vars(module)["init"])
    for of, owner, function, parameters in _CALLS:
        if of == module.__name__:
            library = "tensorboard" if of == _TORCH else of.partition(".")[0]
            place: Any = getattr(module, owner) if owner else module
            original = getattr(place, function)
            setattr(place, function, _noting(original, library, parameters, inspect.signature(original)))


def _noting(
    original: Callable[..., Any], library: str, parameters: tuple[str, str, str], signature: inspect.Signature
) -> Callable[..., Any]:
    @functools.wraps(original)
    def noting(*words: Any, **named: Any) -> Any:
        if getattr(_inside, "is_held", False):  # one of these libraries logs with another
            return original(*words, **named)
        _inside.is_held = True
        try:
            count = getattr(words[0], "_step", None) if library == "wandb" and words else None
            returned = original(*words, **named)
            _keep(library, parameters, lambda: signature.bind(*words, **named).arguments, count)
            return returned
        finally:
            _inside.is_held = False

    return noting


def _keep(
    library: str, parameters: tuple[str, str, str], bind: Callable[[], dict[str, Any]], count: int | None
) -> None:
    try:
        with importing:
            from penstock.runs.inside.run import current_run, log
        if library not in _told and current_run() and os.environ.get("RANK", "0") == "0":
            say(f"keeps what the script logs with {library}")
        _told.add(library)
        given, (name, values, step) = bind(), parameters
        logged: Any = {given[name]: given[values]} if name else given.get(values, ())
        at = given.get(step, count)
        found = [(logged, count if at is None else at)] if step else [({e.key: e.value}, e.step) for e in logged]
        for metrics, of in found:
            mine = {key: each for key, each in _numbers(metrics) if _libraries.setdefault(key, library) == library}
            if mine:
                log(mine if of is None else {"step": of, **mine})
    except Exception as error:
        if "error" not in _told:
            _told.add("error")
            say(f"what the script logs with {library} is not kept: {type(error).__name__}: {error}")


def _numbers(values: Mapping[Any, Any], within: str = "") -> Iterable[tuple[str, Any]]:
    """Yield the numbers among values; what else these libraries take is left to them."""
    for key, value in values.items():
        count: Any = value.numel() if hasattr(value, "numel") else getattr(value, "size", 1)
        if isinstance(value, Mapping):
            yield from _numbers(cast("Mapping[Any, Any]", value), f"{within}{key}/")
        elif count == 1 and not isinstance(value, str) and (hasattr(value, "__float__") or hasattr(value, "item")):
            yield f"{within}{key}", value


def _disabled_too(init: Callable[..., Any]) -> Callable[..., Any]:
    """Also keep what is logged to a run of wandb's that is disabled: its ``log`` is not its class's."""

    def like(data: Any, step: Any = None, commit: Any = None, sync: Any = None) -> None: ...

    @functools.wraps(init)
    def initialised(*words: Any, **named: Any) -> Any:
        run = init(*words, **named)
        own = getattr(run, "__dict__", {}).get("log")
        if own is not None and not hasattr(own, "__wrapped__"):
            run.log = noting = _noting(own, "wandb", ("", "data", "step"), inspect.signature(like))
            if (wandb := sys.modules.get("wandb")) and getattr(wandb, "log", None) is own:
                vars(wandb)["log"] = noting
        return run

    return initialised
