"""What a training script says of the parameters of its run. Outside a run, nothing happens."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from penstock.basics.terminal import say_once
from penstock.linux.fork import importing
from penstock.runs.inside.run import current_run

_LONGEST, _MOST, _MOST_OF_A_DICT, _MOST_CHANGES = 250, 1000, 100, 10_000
_AN_OBJECT = re.compile(r" at 0x[0-9a-f]+>")
_given: dict[str, str] = {}
_changes = 0


def params(values: object = None, /, **more: object) -> None:
    """Give the run parameters, beside those of its command: ``penstock.params(vars(args), model="vit")``.

    They are columns of its table, and compared and filtered as the others; those that its command or a grid has by
    the same names count more. A value is written as text. A dict in place of a value has more of them, whose names
    begin with its own and a dot. Given again, a parameter has its new value. Values of secret names are masked.
    A call never fails. Of the ranks of a run, the first one's count. Outside a run, nothing happens.

    Args:
        values: Values by their names: a dict, or an object with attributes, such as an ``argparse.Namespace``.
        more: More of them.

    Examples:
        >>> penstock.params({"lr": 0.1, "model": {"layers": 4}}, seed=1)
    """
    if (run := current_run()) is None or os.environ.get("RANK", "0") != "0":
        return
    try:
        _keep(values, more, Path(os.environ["PENSTOCK_STORE"], run.id))
    except Exception as error:
        say_once(f"parameters that the script gives are not kept: {type(error).__name__}: {error}")


def _keep(values: object, more: Mapping[str, object], folder: Path) -> None:
    global _changes  # noqa: PLW0603
    with importing:
        from penstock.runs.masking import MASK, is_secret, masked
        from penstock.runs.store.parameters import PARAMETERS

    given = cast("Any", values if values is None or isinstance(values, Mapping) else vars(values))
    new = dict[str, str]()
    for name, text in _texts({**(given or {}), **more}):
        shown = (MASK if is_secret(name.rpartition("/")[2]) else masked(text))[:_LONGEST]
        if _given.get(name) != shown:
            new[name] = shown.encode(errors="replace").decode()
    if len(_given | new) > _MOST or _changes >= _MOST_CHANGES:
        most = f"{_MOST:,} parameters and {_MOST_CHANGES:,} changes"
        say_once(f"of what the script gives as parameters, the first are kept: a run has at most {most}")
        new = {} if _changes >= _MOST_CHANGES else dict([*new.items()][: _MOST - len(_given)])
    if new:
        with (folder / PARAMETERS).open("ab", 0) as file:  # a line of its own, also behind half a line
            file.write(b"\n" + json.dumps(new).encode() + b"\n")
        _given.update(new)
        _changes += 1


def _texts(values: Mapping[Any, Any], within: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and values as text, but for objects whose text is their address."""
    for key, value in values.items():
        name = f"{within}{key}".encode(errors="replace").decode()[:_LONGEST]
        is_few = isinstance(value, Mapping) and len(cast("Mapping[Any, Any]", value)) <= _MOST_OF_A_DICT
        if is_few and len(name) < _LONGEST:  # one that holds itself has an end
            yield from _texts(cast("Mapping[Any, Any]", value), f"{name}.")
        elif not _AN_OBJECT.search(
            text := str(value).lower() if isinstance(value, bool) else str(cast("object", value))
        ):
            yield name, text
