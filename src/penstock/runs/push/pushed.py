"""What of a run an MLflow server has, as the run's folder in the store keeps it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from penstock.linux.files import written_whole
from penstock.runs.push.metrics import Metric


class Pushed(msgspec.Struct):
    """What one experiment on one server has of a run.

    Attributes:
        run_id: Its key there.
        metrics: For each metric how many points it has, and the milliseconds since 1970 of the last.
        whole: Whether the run has ended, and all of it is there.
    """

    run_id: str
    metrics: dict[str, tuple[int, int]] = {}
    whole: bool = False

    def rest(self, name: str, metric: Metric) -> int:
        """Return from which point on a metric is to be pushed: from the first, if earlier ones have come since."""
        count, last_ms = self.metrics.get(name, (0, 0))
        return count if np.searchsorted(metric.times_ms, last_ms, side="right") == count else 0


class Notes:
    """The file that remembers it, written as a whole.

    Args:
        folder: The run's folder in the store.
        place: The server and the experiment.
    """

    def __init__(self, folder: Path, place: str) -> None:
        self._path = folder / "mlflow.json"
        self._place = place
        self._all: dict[str, Pushed] = {}
        with suppress(FileNotFoundError, msgspec.DecodeError):
            self._all = msgspec.json.decode(self._path.read_bytes(), type=dict[str, Pushed])

    @property
    def pushed(self) -> Pushed | None:
        return self._all.get(self._place)

    def write(self, pushed: Pushed) -> None:
        self._all[self._place] = pushed
        with written_whole(self._path) as half:
            half.write_bytes(msgspec.json.encode(self._all))
