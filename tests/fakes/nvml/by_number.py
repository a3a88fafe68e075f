"""Process numbers, as NVML gives them."""

from __future__ import annotations

import pytest

from penstock.linux.process import numbers_are_the_machines

WHY = "this container numbers its processes itself: NVML's tell nothing here"
by_number = pytest.mark.skipif(not numbers_are_the_machines(), reason=WHY)
"""What only works where processes have the numbers that NVML gives."""
