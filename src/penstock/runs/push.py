"""Pushes runs that have ended to an MLflow server: each once, even when asked again; the store stays as it is.

``python -m penstock.runs.push STORE GROUP...`` does so beside ``penstock run``, until its standard input ends.
"""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import islice
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from penstock.basics.terminal import say
from penstock.errors import PenstockError, PushFailed
from penstock.linux.files import locked
from penstock.linux.process import ignore_sent
from penstock.runs.command_options import script_of
from penstock.runs.masking import masked
from penstock.runs.record import ENDED, RunRecord, Status
from penstock.runs.store import Store

if TYPE_CHECKING:
    from penstock.runs.mlflow_metrics import Metric

_PATIENCE_S = 15.0
_EVERY_S = 5.0
_END_S = 10.0
MOST_FILES_BYTES = 1 << 30
"""Bytes of a run's own files beyond which none of them is pushed."""

_MOST_METRICS, _MOST_PARAMETERS, _MOST_REQUEST_BYTES = 1000, 100, 900_000
_MOST_PARAMETER, _MOST_TAG = 6000, 5000
_STATUS: dict[Status, str] = {"finished": "FINISHED", "killed": "KILLED", "timed_out": "KILLED"}
_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # a retry whose first try was not answered would make a run twice
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


class Push:
    """A connection to an MLflow server by a process that does nothing else: its environment is set for MLflow."""

    def __init__(self, store: Store, uri: str, experiment: str = "") -> None:
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        logging.disable(logging.WARNING)
        self._store = store  # where the runs are
        self._uri = uri  # the server, or what else MLflow takes for a tracking URI
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "")  # else a group's name
        # An extra brings it, and it ships no strict types.
        self._mlflow: Any = import_module("mlflow")
        self._failures = (self._mlflow.MlflowException, import_module("requests").RequestException, OSError)
        self._client: Any = self._mlflow.MlflowClient(uri)
        self._whole: set[str] = set()  # runs of which the server is known to have all
        self.points = self.files = 0  # pushed so far

    def groups(self, ids: Iterable[str]) -> None:
        """Push the runs of groups that have ended."""
        for id in ids:
            self.runs(self._store.runs(id))

    def runs(self, chosen: Sequence[RunRecord]) -> None:
        """Push runs of one group, those that have ended."""
        ended = [run for run in chosen if run.status in ENDED and run.id not in self._whole]
        if not ended:
            return
        every = self._store.runs(ended[0].group_id)
        with locked(self._store.folder_of(every[0].id), os.O_RDONLY), self._failing():  # one process at a time
            name = self._experiment or every[0].group
            experiment = self._experiment_id(name)
            parent = self._parent(experiment, every) if len(every) > 1 else ""
            for run in ended:
                self._run(run, experiment, parent)
            if parent and all(run.status in ENDED for run in every):
                statuses = {_STATUS.get(run.status, "FAILED") for run in every}
                status = next((each for each in ("FAILED", "KILLED") if each in statuses), "FINISHED")
                self._client.set_terminated(parent, status, _ms(max(map(_end, every))))

    @contextmanager
    def _failing(self) -> Generator[None]:
        try:
            yield
        except self._failures as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise PushFailed(masked(f"{self._uri}: {shorten(lines[0], 300, placeholder=' …')}")) from error

    def _experiment_id(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            return self._client.create_experiment(name)
        if found.lifecycle_stage != "active":
            raise PushFailed(
                f"{masked(self._uri)}: its experiment {name!r} is deleted; restore it there, or give another with "
                "--experiment"
            )
        return found.experiment_id

    def _found_or_made(
        self, experiment: str, name: str, began: float, known: dict[str, str], others: dict[str, str]
    ) -> Any:
        """Return the run with the known tags; if there is none, it is made, with other tags, too."""
        words = " and ".join(f"tags.`penstock.{tag}` = '{value}'" for tag, value in known.items())
        if runs := self._client.search_runs([experiment], words, max_results=1):
            return runs[0]
        tags = {f"penstock.{tag}": value for tag, value in known.items()} | others
        cut = {tag: value[:_MOST_TAG] for tag, value in tags.items()}
        return self._client.create_run(experiment, start_time=_ms(began), tags=cut, run_name=name)

    def _parent(self, experiment: str, runs: Sequence[RunRecord]) -> str:
        first = runs[0]
        known = {"group_id": first.group_id, "first_run": first.id}
        began = min((run.began for run in runs if run.began is not None), default=time.time())
        found = self._found_or_made(experiment, first.group, began, known, {"penstock.mode": first.mode})
        return found.info.run_id

    def _run(self, run: RunRecord, experiment: str, parent: str) -> None:
        """Push a run, unless the server has it: it has ended there once all of it is there.

        A push that was killed is made again; MLflow keeps equal points once.
        """
        from penstock.runs.mlflow_metrics import metrics_of

        known = {"id": run.id, "group_id": run.group_id}
        others = {"mlflow.parentRunId": parent} if parent else {}
        info = self._found_or_made(experiment, run.name, run.began or time.time(), known, others).info
        if info.status == "RUNNING":
            self._describe(run, info.run_id)
            machine = (self._store.environment(run.id) or {}).get("machine", {})
            series, memory_bytes = self._store.series(run.id), machine.get("memory_bytes")
            self._metrics(info.run_id, metrics_of(series, began=run.began or 0.0, memory_bytes=memory_bytes))
            self._files(run, info.run_id)
            self._client.set_terminated(info.run_id, _STATUS.get(run.status, "FAILED"), _ms(_end(run)))
        self._whole.add(run.id)

    def _metrics(self, run_id: str, metrics: dict[str, Metric]) -> None:
        """Push points, in batches."""
        entity = self._mlflow.entities.Metric
        points = (
            entity(name, value, time_ms, step)
            for name, metric in metrics.items()
            for value, time_ms, step in zip(
                metric.values.tolist(), metric.times_ms.tolist(), metric.steps.tolist(), strict=True
            )
        )
        longest = max((len(json.dumps(name)) for name in metrics), default=0)
        most = min(_MOST_METRICS, _MOST_REQUEST_BYTES // (longest + 130))
        while batch := [*islice(points, most)]:
            self._client.log_batch(run_id, metrics=batch)
            self.points += len(batch)

    def _describe(self, run: RunRecord, run_id: str) -> None:
        """Push parameters and tags; those that are there stay."""
        from penstock.runs.mlflow_metrics import unique_names

        git: dict[str, str] = (self._store.environment(run.id) or {}).get("git") or {}
        command = run.plan.command
        tags = {
            "mlflow.source.name": script_of(command) or command[0],
            "mlflow.source.type": "LOCAL",
            "mlflow.source.git.commit": git.get("commit", ""),
            "penstock.group": run.group,
            "penstock.mode": run.mode,
            "penstock.index": str(run.index),
            "penstock.command": " ".join(command),
            "penstock.status": run.status,
            "penstock.exit_code": "" if run.exit_code is None else str(run.exit_code),
            "penstock.reason": run.reason,
        }
        entities = self._mlflow.entities
        self._client.log_batch(
            run_id, tags=[entities.RunTag(name, text[:_MOST_TAG]) for name, text in tags.items() if text]
        )
        settings = run.parameters
        names = unique_names(settings, kept="")  # a store of files has no model/size beside a model
        parameters = [entities.Param(names[name], text[:_MOST_PARAMETER]) for name, text in settings.items()]
        for at in range(0, len(parameters), _MOST_PARAMETERS):
            self._client.log_batch(run_id, params=parameters[at : at + _MOST_PARAMETERS])

    def _files(self, run: RunRecord, run_id: str) -> None:
        folder = self._store.folder_of(run.id)
        own = [path for path in sorted((folder / "files").rglob("*")) if path.is_file() and not path.is_symlink()]
        nbytes = sum(path.stat().st_size for path in own)
        if nbytes > MOST_FILES_BYTES:
            say(
                f"run {run.id}: its own files have {nbytes:,} bytes, more than {MOST_FILES_BYTES:,}: "
                f"they are not pushed, and stay in {folder / 'files'}"
            )
            own = []
        standard = [path for path in (folder / "output", folder / "environment.json") if path.exists()]
        for path in [*standard, *own]:
            inside = path.parent.relative_to(folder)
            self._client.log_artifact(run_id, str(path), None if inside == Path() else inside.as_posix())
            self.files += 1


def _end(run: RunRecord) -> float:
    return time.time() if run.began is None or run.seconds is None else run.began + run.seconds


def _ms(time_s: float) -> int:
    return round(time_s * 1e3)


@contextmanager
def pushing(folder: Path, groups: Sequence[str], uri: str, experiment: str) -> Generator[None]:
    """Push each run of groups to a server once it has ended; only at the end is that waited for."""
    named = {"MLFLOW_EXPERIMENT_NAME": experiment} if experiment else {}
    process = subprocess.Popen(
        # Of the working directory nothing is imported: a script of the user's may be called mlflow.py.
        [sys.executable, "-P", "-W", "ignore", "-m", __name__, str(folder), *groups],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "MLFLOW_TRACKING_URI": uri, **named},  # a URI with a password is not for `ps`
        start_new_session=True,
    )
    assert process.stdin
    try:
        yield
    finally:
        process.stdin.close()
        try:
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                say("pushing what the runs have left; Ctrl-C ends that")
                process.wait()
        except KeyboardInterrupt:
            process.kill()
            process.wait()
            say(f"not all was pushed; {later(groups)}")


def later(groups: Sequence[str]) -> str:
    """Return a sentence on how to push these groups later."""
    return f"the store has it all: penstock runs push --mlflow URI {' '.join(groups)}"


def _main(folder: str, *groups: str) -> int:
    ignore_sent()  # they are for the runs
    with Store.open(Path(folder)) as store:
        push = Push(store, os.environ["MLFLOW_TRACKING_URI"])
        while not select.select([sys.stdin], [], [], _EVERY_S)[0]:
            with suppress(PenstockError):  # the server may be back later
                push.groups(groups)
        # If who started the runs was killed, their keepers are ending them.
        until = time.monotonic() + _END_S
        while time.monotonic() < until and any(
            run.status not in ENDED for group in groups for run in store.runs(group)
        ):
            time.sleep(0.2)
        try:
            push.groups(groups)
        except PenstockError as error:
            say(f"not all was pushed to {error}; {later(groups)}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
