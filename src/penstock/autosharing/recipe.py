"""What of a script's loader travels to the feeder, and the loader that is made of it there."""

# torch's own annotations leave a loader's samples and settings unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import builtins
import decimal
import locale
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib import import_module
from inspect import signature
from types import FunctionType
from typing import Any, NamedTuple, cast

import torch
from torch.utils.data import DataLoader

from penstock.autosharing.verdict import Plan
from penstock.errors import BadSetting
from penstock.fingerprint.code import is_users, read_by
from penstock.fingerprint.comparison import Fingerprint, fingerprint_difference, same_fingerprint
from penstock.fingerprint.objects import fingerprint_of_objects
from penstock.sources.torch.compat import changed_collate_fn_map, set_collate_fn_map
from penstock.sources.torch.sampling import ToldLoader, as_told


class _Setting(NamedTuple):
    """A setting of a library: an attribute of a module, or what one function returns and another sets."""

    module: str
    name: str
    unchanged: Any  # what it is if nobody sets it; None for what differs by machine, and decides no sample
    setter: str = ""  # gets a dict by its names
    of: tuple[Any, ...] = ()  # arguments of both functions

    def get(self) -> Any:
        value = getattr(sys.modules[self.module], self.name, self.unchanged)
        return value(*self.of) if self.setter else value

    def set(self, value: Any) -> None:
        module = import_module(self.module)
        if not self.setter:
            setattr(module, self.name, value)
        elif isinstance(value, dict):
            getattr(module, self.setter)(**value)
        else:
            getattr(module, self.setter)(*self.of, value)


_SETTINGS = (
    _Setting("PIL.ImageFile", "LOAD_TRUNCATED_IMAGES", False),
    _Setting("PIL.Image", "MAX_IMAGE_PIXELS", 1024**3 // 4 // 3),
    _Setting("PIL.PngImagePlugin", "MAX_TEXT_CHUNK", 1 << 20),
    _Setting("PIL.PngImagePlugin", "MAX_TEXT_MEMORY", 1 << 26),
    _Setting("PIL.GifImagePlugin", "LOADING_STRATEGY", 0),
    _Setting("PIL.TiffImagePlugin", "READ_LIBTIFF", False),
    _Setting("PIL.BmpImagePlugin", "USE_RAW_ALPHA", False),
    _Setting("torchvision", "_image_backend", "PIL"),
    _Setting("torch", "get_default_dtype", torch.float32, "set_default_dtype"),
    _Setting("torch", "get_deterministic_debug_mode", 0, "set_deterministic_debug_mode"),
    _Setting("numpy", "geterr", {}, "seterr"),
    _Setting("csv", "field_size_limit", 1 << 17, "field_size_limit"),
    _Setting("locale", "setlocale", "C", "setlocale", (locale.LC_ALL,)),
    _Setting("sys", "get_int_max_str_digits", sys.int_info.default_max_str_digits, "set_int_max_str_digits"),
    _Setting("sys", "getrecursionlimit", None, "setrecursionlimit"),
    _Setting("cv2", "getNumThreads", None, "setNumThreads"),
)


class Surroundings:
    """What a script has changed of its process, these names in ``builtins`` included, and of libraries."""

    def __init__(self, built_ins: Iterable[str] = ()) -> None:
        self._settings = [(one, one.get()) for one in _SETTINGS if one.module in sys.modules]
        self._decimal = decimal.getcontext().copy()
        self._decimal.clear_flags()
        raising = max((i for i, each in enumerate(warnings.filters, 1) if each[0] == "error"), default=0)
        self._raising = warnings.filters[:raising]  # the last that raises, and those before it
        # The others only print or record, and libraries' own categories may take seconds to import.
        self._others = [each for each in warnings.filters[raising:] if each[2].__module__ == "builtins"]
        self._built_ins = {name: vars(builtins)[name] for name in built_ins}
        self._collate_fn_map = changed_collate_fn_map()
        opens: dict[str, Any] = vars(sys.modules.get("PIL.Image", object)).get("OPEN", {})
        self._formats = {name: how for name, how in opens.items() if not how[0].__module__.startswith("PIL.")}

    @property
    def deciding(self) -> dict[str, Any]:
        """What of it decides samples, by name."""
        named = {
            f"{one.module}.{one.name}": repr(value)
            for one, value in self._settings
            if one.unchanged not in (None, value)
        }
        entries = list((self._collate_fn_map or {}).items())
        return {
            **named,
            "decimal.getcontext": repr(self._decimal),
            "warnings.filters": self._raising,
            "time.tzname": repr(time.tzname),
            "default_collate_fn_map": entries,
            "PIL.Image.OPEN": self._formats,
        }

    def bring(self) -> None:
        """Change this process and its libraries alike."""
        builtins.__dict__.update(self._built_ins)
        decimal.setcontext(self._decimal)
        warnings.resetwarnings()
        cast("list[Any]", warnings.filters).extend([*self._raising, *self._others])
        # Of Python 3.12: a feeder has threads.
        warnings.filterwarnings("ignore", ".* is multi-threaded, use of fork", DeprecationWarning)
        for one, value in self._settings:
            if value != one.unchanged or one.module in sys.modules:
                one.set(value)
        for name, how in self._formats.items():
            import_module("PIL.Image").register_open(name, *how)
        if self._collate_fn_map is not None:
            set_collate_fn_map(self._collate_fn_map)


def bring_and_initialize(surroundings: Surroundings, then: Callable[[int], None] | None, worker: int) -> None:
    """Initialize a worker of a feed by the loader's own function; spawned ones do not inherit surroundings."""
    surroundings.bring()
    if then is not None:
        then(worker)


class LoaderRecipe:
    """Makes, in a feeder, the loader of all data that a script's loader reads; ``share`` calls it there.

    ``drop_last`` is left to the trainers, but for whole batches of a stream. Where batches can be cut, whoever
    starts the feed decides the rows of its blocks; a trainer that replaces its feeder makes equal ones.
    """

    def __init__(
        self, loader: Any, plan: Plan, workers: int, things: dict[str, Any], fingerprint: Fingerprint
    ) -> None:
        self._sampler = as_told(plan.sampler, loader.dataset)  # the script's own goes on, and may be told more
        self._things = {**things, "sampler": self._sampler}  # what decides its batches
        self._fingerprint = fingerprint  # fingerprint of that, which it must have in the feeder, too
        self._dataset = loader.dataset
        self._surroundings = Surroundings(fingerprint.built_ins)
        self._kind = plan.kind
        self._rows = plan.loader_batch_size
        self._whole = plan.whole
        self._drops = _drops_in_feeder(plan)
        self._options: dict[str, Any] = {"collate_fn": loader.collate_fn, "num_workers": workers}
        if workers:
            context = loader.multiprocessing_context
            self._options |= {
                "worker_init_fn": partial(bring_and_initialize, self._surroundings, loader.worker_init_fn),
                "multiprocessing_context": context and context.get_start_method(),
                "timeout": loader.timeout,
                "prefetch_factor": loader.prefetch_factor,
                # Else a generator that the data set owns would draw the same in each cycle.
                "persistent_workers": True,
            }

    def __call__(self) -> Any:
        self._surroundings.bring()
        for module in self._fingerprint.modules:  # which code may import only when it runs
            with suppress(ImportError):  # one that was loaded by its path; the comparison below decides
                import_module(module)
        here = fingerprint_of_objects(self._things)
        if not same_fingerprint(here, self._fingerprint):  # a module that the script has changed after its import
            differs = fingerprint_difference(here, self._fingerprint)
            raise BadSetting(f"it would not be the same in a feeder as in the script: {differs}")
        order: dict[str, Any] = {
            "shuffled": {"batch_size": self._rows, "shuffle": True},
            "sampler": {"batch_size": self._rows, "sampler": self._sampler},
            "batch sampler": {"batch_sampler": self._sampler},
            "whole": {"batch_size": None, "sampler": self._sampler},
            "stream": {"batch_size": self._rows, "drop_last": self._drops},
        }[self._kind]
        return (DataLoader if self._sampler is None else ToldLoader)(self._dataset, **order, **self._options)

    def cut_to(self, rows: int | None) -> None:
        """Make blocks of ``rows`` rows, if batches can be cut."""
        if not self._whole and self._rows is not None:
            self._rows = rows


def things_of(loader: Any, plan: Plan) -> dict[str, Any]:
    """Return what decides a loader's batches, by name, for its fingerprint: no seed and no speed."""
    size = plan.loader_batch_size if plan.whole else None
    workers = loader.num_workers if plan.kind == "stream" else None  # each worker gives its own part
    return {
        "dataset": loader.dataset,
        "collate_fn": loader.collate_fn,
        "sampler": plan.sampler,
        "worker_init_fn": _code_of(loader.worker_init_fn),
        "order": (plan.kind, plan.whole, size, workers, _drops_in_feeder(plan)),
        **Surroundings().deciding,
    }


def _drops_in_feeder(plan: Plan) -> bool:
    """Whether short batches are left out where they are made: only there is known which of a stream's are last."""
    return plan.kind == "stream" and plan.whole and plan.drop_last


def _code_of(function: Any) -> Any:
    """Return a function, and what is bound to one of the user's."""
    if not isinstance(function, partial):
        return getattr(function, "func", function)
    code = function.func
    if not (isinstance(code, FunctionType) and is_users(code.__globals__.get("__name__", ""))):
        return code
    bound = signature(code).bind_partial(*function.args, **function.keywords).arguments
    return code, {name: _read_of(code, name, value) for name, value in bound.items()}


def _read_of(function: FunctionType, name: str, value: Any) -> Any:
    """Return a bound value; of an object the attributes that the function reads."""
    if not hasattr(value, "__dict__") or isinstance(value, (type, FunctionType)):
        return value
    read = {path[1] for path in read_by(function.__code__, name) if len(path) > 1}
    return {each: vars(value)[each] for each in sorted(read & vars(value).keys())}
