"""Keeps the metrics that an unmodified script logs with other libraries, whose calls do what they did.

What a library has taken is kept. Where two libraries get one name, the first that got it counts. Where one library
gets a name for two of its folders or runs, each has a series of its own.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import PurePath
from types import MethodType, ModuleType
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

from penstock.basics.terminal import say
from penstock.linux.fork import importing
from penstock.runs.listeners import is_measured

_TORCH, _TORCH_X = "torch.utils.tensorboard.writer", "tensorboardX.writer"
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
    (_TORCH, "SummaryWriter", "add_hparams", ("", "metric_dict", "global_step")),
    (_TORCH_X, "SummaryWriter", "add_scalar", ("tag", "scalar_value", "global_step")),
    (_TORCH_X, "SummaryWriter", "add_scalars", ("main_tag", "tag_scalar_dict", "global_step")),
    (_TORCH_X, "SummaryWriter", "add_hparams", ("", "metric_dict", "global_step")),
)
"""What takes metrics: its module, its class if it is a method, its name, and its parameters for a metric's name
(if the values have none), for the values, and for the step (if the values have none)."""
_AXES = ("step", "epoch")  # one series for all: it tells what they log at that moment apart
_inside = threading.local()
_told: set[str] = set()


class _Writer(NamedTuple):
    library: str
    key: str  # a folder of TensorBoard's, the id of a run of MLflow's or wandb's


_steps: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # of a run of wandb's: the next, as wandb counts
_folders: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # of a SummaryWriter, which a later chdir leaves there
_parts: dict[_Writer, Callable[[], Sequence[str]]] = {}  # of what people call it; fewer of the last are enough
_labels: dict[str, _Writer] = {}
_owners: dict[str, tuple[_Writer, str]] = {}  # of a series: who logs it, and by which name
_renamed: dict[tuple[_Writer, str], str] = {}


def hooked(module: ModuleType) -> None:
    """Keep what is logged through a module of one of these libraries, which has just been imported."""
    missing: list[str] = []
    if module.__name__ == "wandb.sdk.wandb_init":
        if init := vars(module).get("init"):
            vars(module)["init"] = _disabled_too(init)
        else:
            missing.append("init")
    for of, owner, function, parameters in _CALLS:
        if of == module.__name__:
            library = "tensorboard" if of == _TORCH else of.partition(".")[0]
            place: Any = getattr(module, owner, None) if owner else module
            if original := getattr(place, function, None):
                setattr(place, function, _noting(original, library, parameters, inspect.signature(original)))
            else:
                missing.append(f"{owner}.{function}" if owner else function)
    if missing:
        say(f"this version of {module.__name__} has no {', '.join(missing)}: what is logged with it is not kept")


def _noting(
    original: Callable[..., Any], library: str, parameters: tuple[str, str, str], signature: inspect.Signature
) -> Callable[..., Any]:
    @functools.wraps(original)
    def noting(*words: Any, **named: Any) -> Any:
        if getattr(_inside, "is_held", False):  # one of these libraries logs with another
            return original(*words, **named)
        _inside.is_held = True
        try:
            returned = original(*words, **named)
            _keep(library, parameters, lambda: signature.bind(*words, **named).arguments)
            return returned
        finally:
            _inside.is_held = False

    cast(Any, noting).is_penstocks = True
    return noting


def _keep(library: str, parameters: tuple[str, str, str], bind: Callable[[], dict[str, Any]]) -> None:
    try:
        with importing:
            from penstock.runs.inside.run import current_run, log
        if library not in _told and current_run():
            _tell(library, f"keeps what the script logs with {library}")
        given, (name, values, step) = bind(), parameters
        logged: Any = {given[name]: given[values]} if name else given.get(values, ())
        at = _step_of_wandb(given) if library == "wandb" else given.get(step)
        found = [(logged, at)] if step else [({each.key: each.value}, each.step) for each in logged]
        writer = _writer_of(library, given)
        for metrics, of in found:
            named = [(_series_of(writer, key), value) for key, value in _numbers(metrics)]
            if mine := {key: value for key, value in named if key is not None}:
                log(mine if of is None else {"step": of, **mine})
    except Exception as error:
        _not_kept(library, error)


def _not_kept(library: str, error: Exception) -> None:
    if "error" not in _told:
        _told.add("error")
        say(f"what the script logs with {library} is not kept: {type(error).__name__}: {error}")


def _tell(what: str, sentence: str) -> None:
    if what not in _told and os.environ.get("RANK", "0") == "0":
        say(sentence)
    _told.add(what)


def _numbers(values: Mapping[Any, Any], within: str = "") -> Iterable[tuple[str, Any]]:
    """Yield the numbers among values; what else these libraries take is left to them."""
    for key, value in values.items():
        size: Any = value.numel() if hasattr(value, "numel") else getattr(value, "size", 1)
        if isinstance(value, Mapping):
            yield from _numbers(cast("Mapping[Any, Any]", value), f"{within}{key}/")
        elif size == 1 and not isinstance(value, str) and (hasattr(value, "__float__") or hasattr(value, "item")):
            yield f"{within}{key}", value


def _step_of_wandb(given: Mapping[str, Any]) -> int:
    """Return the step of what was logged, and count on as wandb does, which counts none of a disabled run."""
    run, step, commit = given["self"], given.get("step"), given.get("commit")
    following = _steps.get(run)
    if following is None:
        following = getattr(run, "starting_step", None) or 0  # of one that was resumed
    following = max(following, step or 0)
    _steps[run] = following + bool(step is None if commit is None else commit)
    return following if step is None else step


def _disabled_too(init: Callable[..., Any]) -> Callable[..., Any]:
    """Also keep what is logged to a run of wandb's that is disabled: its ``log`` is not that of ``Run``."""

    def like(self: Any, data: Any, step: Any = None, commit: Any = None, sync: Any = None) -> None: ...

    @functools.wraps(init)
    def initialised(*words: Any, **named: Any) -> Any:
        run = init(*words, **named)
        try:
            if not hasattr(own := run.log, "is_penstocks"):

                @functools.wraps(own)
                def log(_: Any, *words: Any, **named: Any) -> Any:
                    return own(*words, **named)

                run.log = MethodType(_noting(log, "wandb", ("", "data", "step"), inspect.signature(like)), run)
                if (wandb := sys.modules.get("wandb")) and getattr(wandb, "log", None) == own:
                    vars(wandb)["log"] = run.log
        except Exception as error:
            _not_kept("wandb", error)
        return run

    return initialised


def _writer_of(library: str, given: Mapping[str, Any]) -> _Writer:
    """Return the folder or run that a call has logged to."""
    this: Any = given.get("self")
    key, parts = "", cast("Callable[[], Sequence[str]]", list)
    if library.startswith("tensorboard"):
        if (key := _folders.get(this, "")) == "":
            key = _folders[this] = os.path.abspath(getattr(this, "log_dir", None) or this.logdir)
        parts = functools.partial(_parts_of_folder, key)
    elif library == "wandb":
        key, name = str(getattr(this, "id", "")), getattr(this, "name", None)
        parts = functools.partial(list, [name] if name and name != f"dummy-{key}" else [])  # a disabled run's
    elif library == "mlflow":
        fluent: Any = sys.modules["mlflow.tracking.fluent"]
        active = fluent.active_run()
        key = given.get("run_id") or active.info.run_id
        known = active if active and active.info.run_id == key else None
        parts = functools.cache(functools.partial(_name_in_mlflow, known, this or fluent, key))
    writer = _Writer(library, key)
    _parts.setdefault(writer, parts)
    return writer


def _parts_of_folder(folder: str) -> Sequence[str]:
    parts = PurePath(folder).parts[1:]
    default = rf"[^\W\d]+\d\d_\d\d-\d\d-\d\d_{re.escape(socket.gethostname())}(.*)"
    if of_itself := re.fullmatch(default, parts[-1] if parts else ""):
        return [of_itself[1]] if of_itself[1] else []  # the comment: the time would give each start other names
    return parts


def _name_in_mlflow(active: Any, client: Any, run_id: str) -> Sequence[str]:
    with suppress(Exception):  # the server may not answer
        name = (active or client.get_run(run_id)).info.run_name
        return [name] if name else []
    return []


def _series_of(writer: _Writer, name: str) -> str | None:
    """Return the series of what a writer logs by a name; None if another library has that name.

    The first writer has the name for itself until a second logs by it; then both put theirs before it.
    """
    mine = writer, name
    if renamed := _renamed.get(mine):
        return renamed
    first = _owners.setdefault(name, mine)
    if first[0].library != writer.library:
        return None
    if first == mine or name in _AXES:
        return name
    both = [_rename(each) for each in (first, mine) if each[1] == name]
    _tell(
        f"two of {writer.library}",
        f"{writer.library} gets {name!r} from two folders or runs: from here on they are "
        f"{' and '.join(map(repr, both))}, and so with all names that two log",
    )
    return _renamed[mine]


def _rename(origin: tuple[_Writer, str]) -> str:
    writer, name = origin
    parts = [part.replace(".", "_", 1) if is_measured(part) else part for part in _parts[writer]()]
    parts = parts or [writer.library]
    labels = _or_numbered(["/".join(parts[-n:]) for n in range(1, len(parts) + 1)])
    label = next(label for label in labels if _labels.setdefault(label, writer) == writer)
    names = _or_numbered([f"{label}/{name}"])
    return _renamed.setdefault(origin, next(name for name in names if _owners.setdefault(name, origin) == origin))


def _or_numbered(names: Sequence[str]) -> Iterator[str]:
    yield from names
    for n in count(2):
        yield f"{names[0]} {n}"
