"""Settings of libraries, entries of torch's collation and formats of PIL, which go from a script to its feeder."""

# torch's own annotations leave what it collates unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import torch

from penstock.sources.torch.compat import changed_collate_fn_map, set_collate_fn_map


class _Setting(NamedTuple):
    """A setting of a library: an attribute of a module, or what one function returns and another sets.

    Attributes:
        unchanged: What it is if nobody sets it; None for what differs by machine, and decides no sample.
    """

    module: str
    name: str
    unchanged: Any
    setter: str = ""

    def get(self) -> Any:
        value = getattr(sys.modules[self.module], self.name, self.unchanged)
        return value() if self.setter else value

    def set(self, value: Any) -> None:
        module = import_module(self.module)
        if self.setter:
            getattr(module, self.setter)(value)
        else:
            setattr(module, self.name, value)


_SETTINGS = (
    _Setting("PIL.ImageFile", "LOAD_TRUNCATED_IMAGES", False),
    _Setting("PIL.Image", "MAX_IMAGE_PIXELS", 1024**3 // 4 // 3),
    _Setting("PIL.PngImagePlugin", "MAX_TEXT_CHUNK", 1 << 20),
    _Setting("PIL.PngImagePlugin", "MAX_TEXT_MEMORY", 1 << 26),
    _Setting("torchvision", "_image_backend", "PIL"),
    _Setting("torch", "get_default_dtype", torch.float32, "set_default_dtype"),
    _Setting("csv", "field_size_limit", 1 << 17, "field_size_limit"),
    _Setting("sys", "getrecursionlimit", None, "setrecursionlimit"),
    _Setting("cv2", "getNumThreads", None, "setNumThreads"),
)


class Surroundings:
    """What a script has changed of libraries when this is made."""

    def __init__(self) -> None:
        found = [(one, one.get()) for one in _SETTINGS if one.module in sys.modules]
        self._settings = [(one, value) for one, value in found if value != one.unchanged]
        self._collate_fn_map = changed_collate_fn_map()
        opens: dict[str, Any] = vars(sys.modules.get("PIL.Image", object)).get("OPEN", {})
        self._formats = {name: how for name, how in opens.items() if not how[0].__module__.startswith("PIL.")}

    @property
    def deciding(self) -> dict[str, Any]:
        """What of it decides samples, by name."""
        named = {
            f"{one.module}.{one.name}": repr(value) for one, value in self._settings if one.unchanged is not None
        }
        entries = list((self._collate_fn_map or {}).items())
        return {**named, "default_collate_fn_map": entries, "PIL.Image.OPEN": self._formats}

    def bring(self) -> None:
        """Change this process's libraries alike."""
        for one, value in self._settings:
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
