"""The formats of data sets that are named in a text, each by a prefix, and what opens them.

A new format is a file, and a line here by which ``share`` and ``penstock feed`` find it.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from importlib import import_module
from inspect import Parameter, signature
from typing import Any, NamedTuple, get_type_hints

from penstock.errors import BadSetting

SOURCES = {
    "images:": "penstock.sources.images.source:ImageSource",
    "tokens:": "penstock.sources.tokens.source:TokenSource",
    "packed:": "penstock.sources.packed.source:PackedSource",
}
"""By prefix: a source that takes a path or a pattern, and keywords."""

_OF_THE_FEED = {"segments", "seed", "shard"}


class NamedSource(NamedTuple):
    """A source that a text names.

    Attributes:
        text: Such as ``images:photos``.
        make: What makes the source.
        path: What stands behind the prefix.
    """

    text: str
    make: Callable[..., Any]
    path: str

    @property
    def options(self) -> dict[str, Any]:
        """The source's own keywords, and their types."""
        kinds = get_type_hints(self.make.__init__)
        return {name: kinds[name] for name in self._parameters()}

    def open(self, *, segments: int | None, seed: int, **options: Any) -> Any:
        """Make the source.

        Raises:
            BadSetting: it has no such option, needs one more, or refuses a value.
        """
        parameters = self._parameters()
        for name in options.keys() - parameters.keys():
            near = difflib.get_close_matches(name, parameters, 1)
            known = f"did you mean {near[0]}?" if near else f"it has {', '.join(parameters)}"
            raise BadSetting(f"{self.text} has no option {name!r}; {known}")
        for name, parameter in parameters.items():
            if parameter.default is Parameter.empty and name not in options:
                raise BadSetting(f"{self.text} needs {name}=..., as penstock.{self.make.__name__} does")
        return self.make(self.path, segments=segments, seed=seed, **options)

    def _parameters(self) -> dict[str, Parameter]:
        named = signature(self.make).parameters
        return {
            name: each
            for name, each in named.items()
            if each.kind is Parameter.KEYWORD_ONLY and name not in _OF_THE_FEED
        }


def named_source(text: object) -> NamedSource | None:
    """Return the source that a text names; None if it names none.

    Raises:
        BadSetting: no path stands behind the prefix.
    """
    prefix = next((prefix for prefix in SOURCES if isinstance(text, str) and text.startswith(prefix)), None)
    if prefix is None:
        return None
    path = str(text).removeprefix(prefix)
    if not path:
        raise BadSetting(f"{text} names nothing: write {prefix}PATH")
    module, _, name = SOURCES[prefix].partition(":")
    return NamedSource(str(text), getattr(import_module(module), name), os.path.expanduser(path))
