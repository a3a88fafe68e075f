"""A series of a run. This module imports no NumPy, so that a keeper starts quickly."""

from __future__ import annotations

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
