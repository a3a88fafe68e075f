"""Keeps the metrics and parameters that a script gives other libraries, whose calls do what they did.

What a library has taken is kept. Where two libraries get one name, the first that got it counts. Where one library
gets a name for two of its folders or runs, each has a series of its own.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from types import ModuleType
from typing import Any, cast
from weakref import WeakKeyDictionary

from penstock.basics.terminal import say_once
from penstock.linux.fork import importing
from penstock.runs.listeners import is_measured

_TORCH = "torch.utils.tensorboard.writer"
_WRITERS = f"{_TORCH} tensorboardX.writer"
_FLUENT, _CLIENT = ("mlflow.tracking.fluent", ""), ("mlflow.tracking.client", "MlflowClient")
_RADT, _WRITER = ("radt.run.benchmark", "RADTBenchmark"), (_WRITERS, "SummaryWriter")
_CONFIG = "wandb.sdk.wandb_config", "Config"
_CALLS = {
    (*_FLUENT, "log_metric"): ("key", "value", "step"),
    (*_FLUENT, "log_metrics"): ("", "metrics", "step"),
    (*_CLIENT, "log_metric"): ("key", "value", "step"),
    (*_CLIENT, "log_batch"): ("", "metrics", ""),
    (*_RADT, "log_metric"): ("name", "value", "epoch"),
    (*_RADT, "log_metrics"): ("", "metrics", "epoch"),
    ("wandb.sdk.wandb_run", "Run", "log"): ("", "data", "step"),
    (*_WRITER, "add_scalar"): ("tag", "scalar_value", "global_step"),
    (*_WRITER, "add_scalars"): ("main_tag", "tag_scalar_dict", "global_step"),
    (*_WRITER, "add_hparams"): ("", "metric_dict", "global_step"),
}
"""What takes metrics: its modules, its class if it is a method, and its name; and its arguments for a metric's
name (if the values have none), for the values, and for the step (if the values have none)."""
_Given = dict[str, Any]
_PARAMETERS: Mapping[tuple[str, str, str], Callable[[_Given], Mapping[Any, Any]]] = {
    (*_FLUENT, "log_param"): lambda given: {given["key"]: given["value"]},
    (*_FLUENT, "log_params"): lambda given: given["params"],
    (*_CLIENT, "log_param"): lambda given: {given["key"]: given["value"]},
    (*_CLIENT, "log_batch"): lambda given: {each.key: each.value for each in given.get("params", ())},
    (*_WRITER, "add_hparams"): lambda given: given["hparam_dict"],
    **{
        (*_CONFIG, name): lambda given: _configured(given["self"], given.get("d", given.get("key")))
        for name in ("update", "setdefaults", "__setitem__", "__setattr__")
    },
}
"""What takes parameters of a run, and what they are."""
_Call = Callable[..., Any]
_Keep = Callable[[Callable[[], _Given]], None]
"""Keeps something of a call, whose arguments it gets by their names."""
_inside = threading.local()
_folders: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # of a SummaryWriter, which a later chdir leaves there


class _Writer:
    """A folder of TensorBoard's, or a run of MLflow's or wandb's."""

    def __init__(self, library: str, name: Callable[[], Any]) -> None:
        self.library, self._name, self.next_step = library, name, 0  # as wandb counts

    @functools.cached_property
    def place(self) -> str:
        """Its folder or name, which it has again in the next process of the run."""
        name = ""
        with suppress(Exception):  # a server may not answer
            # Less the time of a folder's default name, which would be another in each start of a script.
            name = re.sub(rf"/.*/[^\W\d]+(\d\d[_-]){{3}}\d\d_{re.escape(socket.gethostname())}", "", self._name())
        return name

    @functools.cached_property
    def label(self) -> str:
        """As many of the last parts of its place as tell it apart from all others."""
        _recall()
        if known := _unclaimed.get((self.library, self.place)):
            _labels[known[0]] = self
            return known.pop(0)
        parts = self.place.split("/")[1:] if self.place.startswith("/") else [self.place]
        parts = [part.replace(".", "_") if is_measured(part) else part for part in parts if part] or [self.library]
        return _first_free(_labels, self, *("/".join(parts[-n:]) for n in range(1, len(parts) + 1)))


_writers: dict[tuple[str, str], _Writer] = {}  # of a library and a folder or an id
_labels: dict[str, _Writer | None] = {}  # None for a writer of another process
_owners: dict[str, tuple[_Writer, str]] = {}  # of a series: who logs it, and by which name
_renamed: dict[tuple[_Writer, str], str] = {}
_naming = threading.RLock()
_NAMES = "names.jsonl"
"""In the run's folder: who has renamed what, for its other processes (process, library, place, label, name)."""
_here = os.urandom(4).hex()
_names_end = 0  # what has been read of that file
_logged_by_two: set[tuple[str, str]] = set()  # a library and a name, in any process of the run
_unclaimed: dict[tuple[str, str], list[str]] = {}  # labels of a library and a place, in other processes


def hooked(module: ModuleType) -> None:
    """Keep what is logged through a module of one of these libraries, which has just been imported."""
    if module.__name__ == "wandb.sdk.wandb_init":
        vars(module)["init"] = _disabled_too(module.init, module.Run.log)
    library = "tensorboard" if module.__name__ == _TORCH else module.__name__.partition(".")[0]
    for of, owner, function in dict.fromkeys([*_CALLS, *_PARAMETERS]):
        if module.__name__ in of.split():
            place: Any = getattr(module, owner) if owner else module
            original, keeps = getattr(place, function), list[_Keep]()
            if parameters := _CALLS.get((of, owner, function)):
                keeps.append(functools.partial(_keep, library, parameters))
            if pick := _PARAMETERS.get((of, owner, function)):
                keeps.append(functools.partial(_keep_parameters, library, pick))
            setattr(place, function, _noting(original, keeps, inspect.signature(original)))


def _noting(original: _Call, keeps: Sequence[_Keep], signature: inspect.Signature, *of: Any) -> _Call:
    @functools.wraps(original)
    def noting(*words: Any, **named: Any) -> Any:
        if getattr(_inside, "is_held", False):  # one of these libraries logs with another
            return original(*words, **named)
        _inside.is_held = True
        try:
            returned = original(*words, **named)
            for keep in keeps:
                keep(lambda: signature.bind(*of, *words, **named).arguments)
            return returned
        finally:
            _inside.is_held = False

    return noting


def _keep(library: str, parameters: tuple[str, str, str], bind: Callable[[], _Given]) -> None:
    try:
        with importing:
            from penstock.runs.inside.run import current_run, log
        if current_run() and os.environ.get("RANK", "0") == "0":
            say_once(f"keeps what the script logs with {library}")
        given, (name, values, step) = bind(), parameters
        logged: Any = {given[name]: given[values]} if name else given.get(values, ())
        writer = _writer_of(library, given)
        at = _step_of_wandb(writer, given) if library == "wandb" else given.get(step)
        if library == "wandb" and at is None:
            return
        found = [(logged, at)] if step else [({each.key: each.value}, each.step) for each in logged]
        for metrics, of in found:
            named = [(_series_of(writer, key), value) for key, value in _numbers(metrics)]
            if mine := {key: value for key, value in named if key is not None}:
                log(mine if of is None else {"step": of, **mine})
    except Exception as error:
        say_once(f"what the script logs with {library} is not kept: {type(error).__name__}: {error}", "metrics")


def _keep_parameters(
    library: str, pick: Callable[[_Given], Mapping[Any, Any]], bind: Callable[[], _Given]
) -> None:
    try:
        with importing:
            from penstock.runs.inside.parameters import params
        params(pick(bind()))
    except Exception as error:
        say_once(f"parameters of {library} are not kept: {type(error).__name__}: {error}", "parameters")


def _configured(config: Any, what: Any) -> dict[Any, Any]:
    """Return what a configuration of wandb's has of a name, or of those of a dict or an object with attributes."""
    known: dict[Any, Any] = dict(config)
    if isinstance(what, str):
        return {what: known[what]} if what in known else {}
    named = cast("Mapping[Any, Any]", what if isinstance(what, Mapping) else vars(what))
    return {name: known[name] for name in named if name in known}


def _numbers(values: Mapping[Any, Any], within: str = "") -> Iterable[tuple[str, Any]]:
    """Yield the numbers among values; what else these libraries take is left to them."""
    for key, value in values.items():
        size: Any = value.numel() if hasattr(value, "numel") else getattr(value, "size", 1)
        if isinstance(value, Mapping):
            yield from _numbers(cast("Mapping[Any, Any]", value), f"{within}{key}/")
        elif size == 1 and not isinstance(value, str) and (hasattr(value, "__float__") or hasattr(value, "item")):
            yield f"{within}{key}", value


def _step_of_wandb(run: _Writer, given: Mapping[str, Any]) -> int | None:
    """Return the step of what was logged, and count on as wandb does, which counts none of a disabled run.

    None if wandb drops it: its step lies before the present one.
    """
    step, commit = given.get("step"), given.get("commit")
    now = max(run.next_step, getattr(given["self"], "starting_step", 0))
    if step is not None and step < now:
        return None
    now = now if step is None else step
    run.next_step = now + bool(step is None if commit is None else commit)
    return now


def _disabled_too(init: _Call, usual: _Call) -> _Call:
    """Keep a run's configuration, and what is logged to one that is disabled: its ``log`` is not the usual one."""

    @functools.wraps(init)
    def initialised(*words: Any, **named: Any) -> Any:
        run = init(*words, **named)
        _keep_parameters("wandb", lambda _: dict(getattr(run, "config", ())), dict[str, Any])
        own = getattr(run, "log", None)
        if own is not None and inspect.unwrap(own) is not inspect.unwrap(usual):
            keep = functools.partial(_keep, "wandb", ("", "data", "step"))
            run.log = noting = _noting(own, [keep], inspect.signature(usual), run)
            if (wandb := sys.modules.get("wandb")) and getattr(wandb, "log", None) == own:
                vars(wandb)["log"] = noting
        return run

    return initialised


def _writer_of(library: str, given: Mapping[str, Any]) -> _Writer:
    """Return the folder or run that a call has logged to."""
    this, key, name = cast(Any, given.get("self")), "", cast("Callable[[], Any]", str)
    if library.startswith("tensorboard"):
        if not (key := _folders.get(this, "")):
            key = _folders[this] = os.path.abspath(getattr(this, "log_dir", None) or this.logdir)
        name = functools.partial(str, key)
    elif library == "wandb":
        key, own = this.id, this.name or ""
        name = own.replace(f"dummy-{key}", "").strip  # of one that is disabled
    elif library == "mlflow":
        fluent: Any = sys.modules["mlflow.tracking.fluent"]
        key = given.get("run_id") or fluent.active_run().info.run_id
        name = lambda: (this or fluent).get_run(key).info.run_name  # noqa: E731
    return _writers.setdefault((library, key), _Writer(library, name))


def _series_of(writer: _Writer, name: str) -> str | None:
    """Return the series of a name: the first writer has it until a second logs by it; None for another library."""
    mine = writer, name
    with _naming:
        if not _owners:
            _recall()
        if mine in _renamed:
            return _renamed[mine]
        if name not in _owners and (writer.library, name) in _logged_by_two:
            return _rename(writer, name)
        first = _owners.setdefault(name, mine)
        if first == mine:
            return name
        if first[0].library != writer.library:
            return None
        if name in ("step", "epoch"):  # what all are drawn over
            return name
        for each in (first, mine):
            if each[1] == name and each not in _renamed:
                _rename(*each)
        both = " and ".join(repr(_renamed.get(each, name)) for each in (first, mine))
        kept = f"from here on they are {both}, and so with all names that two log"
        said = f"{writer.library} gets {name!r} from two folders or runs: {kept}"
        say_once(said, f"names of {writer.library}")
        return _renamed[mine]


def _after_fork() -> None:
    global _naming  # noqa: PLW0603
    _naming = threading.RLock()  # another thread may have held it


os.register_at_fork(after_in_child=_after_fork)


def _rename(writer: _Writer, name: str) -> str:
    mine = writer, name
    _renamed[mine] = _first_free(_owners, mine, f"{writer.label}/{name}")
    line = json.dumps([_this_process(), writer.library, writer.place, writer.label, name]) + "\n"
    with suppress(OSError, KeyError), _names_file().open("ab", 0) as file:
        file.write(line.encode())
    return _renamed[mine]


def _recall() -> None:
    """Take over what other processes of the run have renamed."""
    global _names_end  # noqa: PLW0603
    lines: list[bytes] = []
    with suppress(OSError, KeyError), _names_file().open("rb") as file:
        file.seek(_names_end)
        lines = file.read().splitlines(keepends=True)
    for line in lines:
        if not line.endswith(b"\n"):
            break
        _names_end += len(line)
        with suppress(ValueError, TypeError):
            process, library, place, label, name = json.loads(line)
            if process != _this_process():
                _logged_by_two.add((library, name))
                if label not in _labels:
                    _labels[label] = None
                    _unclaimed.setdefault((library, place), []).append(label)


def _names_file() -> Path:
    return Path(os.environ["PENSTOCK_STORE"], os.environ["PENSTOCK_RUN_ID"], _NAMES)


def _this_process() -> str:
    return f"{_here}-{os.getpid()}"


def _first_free(taken: dict[str, Any], by: Any, *names: str) -> str:
    """Return the first of some names that nobody else has taken, or the first with a number, and take it."""
    numbered = (f"{names[0]} {n}" for n in count(2))
    return next(name for name in chain(names, numbered) if taken.setdefault(name, by) == by)
