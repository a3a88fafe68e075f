"""The arrays that several contracts speak of: bytes, and the numbers of samples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

ByteArray = npt.NDArray[np.uint8]
Ids = npt.NDArray[np.int64]
"""Samples by their number in the data set: ``dataset[id]`` is the sample."""
