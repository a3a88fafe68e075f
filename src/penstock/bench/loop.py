"""A trainer that takes batches and trains nothing: ``python -m penstock.bench.loop JOB``, as a run of a trial."""

# torch's own annotations leave a loader's settings unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, NoReturn

import msgspec

from penstock import errors, waits
from penstock.autosharing.share import share
from penstock.basics.tracebacks import users_traceback
from penstock.contracts import Cursor
from penstock.errors import PenstockError, SourceError
from penstock.feed.launch.function import FunctionFailed, call, function_at
from penstock.runs.inside.run import Run, current_run, watch_waits
from penstock.runs.record import RunPlan, RunRecord
from penstock.runs.store import Store
from penstock.runs.trial import MEASURED, OTHERS
from penstock.sources.adapt import adapt
from penstock.sources.seeds import seed_process
from penstock.tree import first_rows

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Environment of processes that are to take one core each for arithmetic."""
_FAILURE = "failure.json"


class LoopJob(msgspec.Struct, frozen=True):
    """What to take batches of."""

    where: str  # the function that makes the loader, as FILE.py:FUNCTION
    workers: int | None = None  # workers of a ``DataLoader`` in place of its own number
    feed: str = ""  # name of the feed that runs the loader; empty for one of this process's own
    window: str = ""  # the size of its window
    step_s: float = 0.0  # time that passes after each batch, in place of training on it


def plan_of(module: str, job: msgspec.Struct, name: str, *, watch_dataloader: bool = False) -> RunPlan:
    """Return a run of a module of ours that does a job; -P leaves the working directory out of its import path."""
    words = sys.executable, "-P", "-m", module, msgspec.json.encode(job).decode()
    return RunPlan(command=words, name=name, directory=os.getcwd(), watch_dataloader=watch_dataloader)


def made(where: str) -> Any:
    """Call the function at ``FILE.py:FUNCTION`` as ``penstock feed`` does."""
    seed_process(0)
    return call(function_at(where), where)


def is_loader(thing: Any) -> bool:
    """Return whether something is a ``DataLoader`` of torch's."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.utils.data.DataLoader)


def batches_of(job: LoopJob) -> Iterator[Any]:
    """Yield the batches that a training script gets, pass after pass."""
    if job.feed:
        loader = share(partial(made, job.where), job.feed, window=job.window)
        return _passes(job.where, lambda _: iter(loader))
    thing = made(job.where)
    if is_loader(thing):
        if job.workers is not None:
            thing.num_workers = job.workers  # it is read when a pass begins
        return _passes(job.where, lambda _: iter(thing))
    source = adapt(thing, segments=1, seed=0)
    return _passes(job.where, lambda cycle: (block.tree for block in source.open(Cursor(cycle, 0))))


def _passes(where: str, open_pass: Callable[[int], Iterator[Any]]) -> Generator[Any]:
    try:
        for cycle in count():
            given = 0
            for batch in open_pass(cycle):
                given += 1
                yield batch
            if not given:
                raise SourceError(
                    f"what {where} returned gave no batch in pass {cycle + 1}: return something that gives "
                    "its batches each time it is iterated"
                )
    except PenstockError:
        raise
    except Exception as error:
        raise SourceError(
            f"what {where} returned raised {type(error).__name__}: {error}", users_traceback(error)
        ) from error


def take(batches: Iterator[Any], samples: Callable[[Any], int] = first_rows, step_s: float = 0.0) -> None:
    """Take batches until this run is ended; its series tell how fast they came."""
    watch_waits()
    loop = waits.Iteration(batches)
    try:
        while True:
            loop.ask()
            loop.give(samples(next(batches)))
            if step_s:
                time.sleep(step_s)
    except Exception as error:
        leave_failure(error)


def leave_failure(error: Exception) -> NoReturn:
    """Leave an error in this run's files, for ``failure``, and exit."""
    traceback = getattr(error, "traceback_text", "")
    left = type(error).__name__, str(error), traceback
    (this_run().folder / _FAILURE).write_bytes(msgspec.json.encode(left))
    sys.exit(f"{traceback}{error}")


def this_run() -> Run:
    """Return the run of a trial that this process is."""
    run = current_run()
    assert run is not None, "this is started by penstock"
    return run


def failure(store: Store, runs: list[RunRecord], what: str) -> Exception | None:
    """Return why one of the runs of a trial ended by itself, as an error to raise; None if none did."""
    for run in runs:
        if run.status == "finished" or run.reason.startswith((MEASURED, OTHERS)):
            continue
        with suppress(FileNotFoundError):
            path = store.folder_of(run.id) / "files" / _FAILURE
            kind, message, traceback = msgspec.json.decode(path.read_bytes(), type=tuple[str, str, str])
            if kind == FunctionFailed.__name__:
                return FunctionFailed(message, traceback)
            known = getattr(errors, kind, PenstockError)
            return known(message, traceback) if issubclass(known, SourceError) else known(message)
        return PenstockError(f"{what}: {run.status.replace('_', ' ')}: {run.reason}")
    return None


if __name__ == "__main__":
    job = msgspec.json.decode(sys.argv[1], type=LoopJob)
    try:
        found = batches_of(job)
    except Exception as error:
        leave_failure(error)
    take(found, step_s=job.step_s)
