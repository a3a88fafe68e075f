"""An MLflow server of an environment of its own, and what it says of its runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.forked import HANG_S
from tests.support.ports import free_port

COMMAND = Path(os.environ.get("PENSTOCK_MLFLOW_SERVER") or Path(sys.prefix) / "mlflow-server/bin/mlflow")


class Server:
    """A server on a free port, with SQLite (made unless there is one) and a folder for artifacts."""

    def __init__(self, folder: Path, made: Path | None = None) -> None:
        self._folder = folder  # where all that it keeps lies
        self.database = folder / "mlflow.sqlite"
        if made:
            shutil.copy(made, self.database)
        self._port = free_port()
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["server", "--host", "127.0.0.1", "--port", str(self._port), "--workers", "1"]
        words += ["--backend-store-uri", f"sqlite:///{self.database}"]
        words += ["--artifacts-destination", str(self._folder / "artifacts")]
        with open(self._folder / "said", "ab") as said:
            self._process = subprocess.Popen(
                [COMMAND, *words],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd=self._folder,
                env={
                    "PATH": os.environ["PATH"],
                    "HOME": str(self._folder),
                    "MLFLOW_DISABLE_TELEMETRY": "true",
                    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # ten processes, and files in /dev/shm
                },
                start_new_session=True,
            )
        deadline = time.monotonic() + HANG_S
        while not self._answers():
            assert time.monotonic() < deadline, (self._folder / "said").read_text()
            time.sleep(0.2)

    def kill(self) -> None:
        if self._process:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def rows(self, table: str) -> int:
        with closing(sqlite3.connect(self.database, timeout=30)) as database:
            return database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]

    def ask(self, path: str, **said: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.uri}/api/2.0/mlflow/{path}",
            json.dumps(said).encode() if said else None,
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def runs(self, experiment: str) -> list[dict[str, Any]]:
        """All runs of an experiment, the earliest first, with their tags and parameters by name."""
        found = self.ask(f"experiments/get-by-name?experiment_name={experiment}")["experiment"]
        answer = self.ask("runs/search", experiment_ids=[found["experiment_id"]], max_results=1000)
        return [
            run["info"]
            | {
                kind: {each["key"]: each["value"] for each in run["data"].get(kind, [])}
                for kind in ("tags", "params")
            }
            | {"metrics": sorted(each["key"] for each in run["data"].get("metrics", []))}
            for run in sorted(answer.get("runs", []), key=lambda run: run["info"]["start_time"])
        ]

    def history(self, run_id: str, metric: str) -> list[tuple[int, float, int]]:
        """All points of a metric: milliseconds, value and step."""
        points: list[tuple[int, float, int]] = []
        token = ""
        while True:
            query = f"run_id={run_id}&metric_key={urllib.parse.quote(metric)}&max_results=25000&page_token={token}"
            answer = self.ask(f"metrics/get-history?{query}")
            points += [
                (int(each["timestamp"]), float(each["value"]), int(each.get("step", 0)))
                for each in answer.get("metrics", [])
            ]
            if not (token := answer.get("next_page_token", "")):
                return sorted(points)

    def artifact(self, run: dict[str, Any], path: str) -> bytes:
        inside = run["artifact_uri"].removeprefix("mlflow-artifacts:/")
        return (self._folder / "artifacts" / inside / path).read_bytes()

    def artifacts(self, run: dict[str, Any]) -> list[str]:
        root = self._folder / "artifacts" / run["artifact_uri"].removeprefix("mlflow-artifacts:/")
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())

    def _answers(self) -> bool:
        assert self._process and self._process.poll() is None, (self._folder / "said").read_text()
        try:
            return urllib.request.urlopen(f"{self.uri}/health", timeout=5).status == 200
        except (urllib.error.URLError, OSError):
            return False
