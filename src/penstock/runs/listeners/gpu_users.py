"""Whether NVML's process numbers mean anything here."""

from __future__ import annotations

import os
from collections.abc import Iterable

FOREIGN = (
    "NVML lists processes that do not exist here: in a container its numbers may be the host's, so which run uses "
    "which GPU is not known; docker run --pid=host shows it"
)


def exist_here(pids: Iterable[int]) -> bool:
    """Return whether all processes exist in this PID namespace; in another, a number may be anybody's."""
    for pid in pids:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # another user's
            pass
    return True
