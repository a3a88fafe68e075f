"""A series of a run. This module imports no NumPy, so that a keeper starts quickly."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Series(NamedTuple):
    """Points of one name, oldest first.

    Attributes:
        times_s: Seconds since 1970, to the microsecond.
        values: What was measured; NaN and infinities are values.
    """

    times_s: NDArray[np.float64]
    values: NDArray[np.float64]

    @property
    def last(self) -> float | None:
        """The newest value; None without points."""
        return float(self.values[-1]) if len(self.values) else None

    def rise_per_s(self, recent_s: float = math.inf) -> float | None:
        """Return how fast a counter rose, per second; None if there is no time between its points.

        Args:
            recent_s: Seconds before the newest point that count; the newest two points do in any case.
        """
        if len(self.times_s) < 2:
            return None
        first = min(int((self.times_s < self.times_s[-1] - recent_s).sum()), len(self.times_s) - 2)
        passed_s = float(self.times_s[-1] - self.times_s[first])
        return float(self.values[-1] - self.values[first]) / passed_s if passed_s > 0 else None
