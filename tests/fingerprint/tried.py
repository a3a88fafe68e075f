"""Tries mutations as ``--share`` meets them: ``python -m tests.fingerprint.tried FOLDER`` prints JSON.

A script is run twice, with ``VALUE`` 1 and 2, in forked processes; what its loader gives there is compared with
what the loader that travels gives in a process that has imported nothing of the script's, as a feeder is one.
Where the two may meet, the witness compares them as well.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import sys
import traceback
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from tests.fingerprint.mutations import ALIKE, MUTATIONS, Script
from torch.utils.data import DataLoader

from penstock.autosharing.guard import _feed  # pyright: ignore[reportPrivateUsage]
from penstock.autosharing.recipe import things_of
from penstock.autosharing.verdict import Ranks, judge
from penstock.feed.launch.spec import FeederSpec, pickle_spec, read_spec
from penstock.feed.settings import Settings
from penstock.fingerprint.batch import LeafDigest, difference
from penstock.fingerprint.objects import fingerprint_of_objects
from penstock.inject import FEEDER
from penstock.sources.adapt import witness_of

SAMPLES = range(3)
PRELUDE = """
import contextlib, dataclasses, enum, functools, importlib, json, math, operator, os, random, sys, types
import numpy as np
import torch
from torch.utils.data import Dataset
VALUE = int(sys.argv[1])
"""


class Batch(NamedTuple):
    """What a loader makes of the first samples, as a worker would."""

    values: str = ""  # the samples, as text; the error, if one is raised
    leaves: tuple[LeafDigest, ...] = ()  # what the witness sees of them; nothing if they cannot be made

    def against(self, fed: Batch) -> str:
        """Return what comes of a script that makes these, and may read that feed."""
        if fed.values == self.values:
            return "REFUSED" if difference(self.leaves, fed.leaves) else "shared"
        if fed.values.startswith("raises "):  # so the first block fails, and the script goes on without the feed
            return f"falls back: the feeder {fed.values}"
        refused = "refused by the witness" if difference(self.leaves, fed.leaves) else "WRONG"
        return f"{refused}: {fed.values} instead of {self.values}"


class Run(NamedTuple):
    """What came of a script."""

    name: str  # name of its feed
    alone: Batch  # what its loader makes
    spec: bytes | None  # what goes to a feeder; None if it is not shared
    why: str  # why it is not


def forked(kind: Any, do: Callable[[], Any], folder: Path, environment: dict[str, str]) -> Any:
    """Return what a function returns in a process of its own, whose ``__main__`` is the script's."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.close(reader)
            os.environ.update(environment)
            os.chdir(folder)
            sys.path.insert(0, str(folder))
            sys.modules["__main__"] = types.ModuleType("__main__")
            with contextlib.redirect_stdout(io.StringIO()), open(writer, "wb") as file:
                file.write(msgspec.msgpack.encode(do()))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        told = file.read()
    os.waitpid(pid, 0)
    return msgspec.msgpack.decode(told, type=kind)


def batch(loader: Any) -> Batch:
    try:
        if loader.num_workers and loader.worker_init_fn:
            loader.worker_init_fn(0)
        samples = [loader.dataset[i] for i in SAMPLES]
        values = repr(loader.collate_fn(samples))
        leaves_of, _ = witness_of(loader)
        assert leaves_of
        return Batch(values, leaves_of(SAMPLES))
    except Exception as error:
        return Batch(f"raises {type(error).__name__}: {error}")


def run(script: Script, value: int) -> Run:
    sys.argv = ["script.py", str(value)]
    main = sys.modules["__main__"].__dict__
    main["__file__"] = "script.py"
    exec(compile(Path("script.py").read_text(), "script.py", "exec"), main)
    given = {name: main[name] for name in ("collate_fn", "worker_init_fn") if name in main}
    loader: Any = DataLoader(main["dataset"], 2, shuffle=True, num_workers=1, **given)
    name, spec, why = "", None, ""
    try:
        plan = judge(loader, Ranks())
        things = things_of(loader, plan)
        fingerprint = fingerprint_of_objects(things)
        feed = _feed(loader, plan, things, fingerprint, "script", is_first=False)
        name = feed.name
        spec = pickle_spec(FeederSpec(feed.recipe, "a", Settings(), fingerprint, sys.argv))
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    return Run(name, batch(loader), spec, why)


def fed(spec: bytes) -> tuple[Batch, str]:
    """Return what a feeder's loader makes, and why there is none."""
    os.environ[FEEDER] = "1"
    try:
        return batch(read_spec(io.BytesIO(spec)).make_loader()), ""
    except Exception as error:
        return Batch(), f"{type(error).__name__}: {error}"


def tried(name: str, script: Script, folder: Path) -> dict[str, str]:
    folder.mkdir()
    (folder / "script.py").write_text(PRELUDE + script.text)
    for module, text in script.modules.items():
        (folder / module).parent.mkdir(exist_ok=True)
        (folder / module).write_text(text)
    variables = [{key: text.format(value) for key, text in script.environment.items()} for value in (1, 2)]
    one, two = (forked(Run, lambda v=v: run(script, v), folder, variables[v - 1]) for v in (1, 2))
    feeds: list[tuple[Batch, str]] = [
        forked(tuple[Batch, str], lambda r=r: fed(r.spec), folder, v) if r.spec else (Batch(), r.why)
        for r, v in zip((one, two), variables, strict=True)
    ]
    (first, no_first), (second, no_second) = feeds
    together = one.name == two.name and not no_first
    return {
        "first": f"alone: {no_first}" if no_first else one.alone.against(first),
        "second": f"alone: {no_second}" if no_second else two.alone.against(second),
        "both": two.alone.against(first) if together else "apart",
        "values": "differ" if one.alone.values != two.alone.values else f"are equal: {one.alone.values}",
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # what is here already is no garbage: children would copy it all to find out
    scripts = {**MUTATIONS, **ALIKE}
    wanted = sys.argv[2:] or list(scripts)
    found = {each: tried(each, scripts[each], Path(sys.argv[1]) / str(i)) for i, each in enumerate(wanted)}
    print(json.dumps(found, indent=1))
