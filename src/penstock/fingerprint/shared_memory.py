"""What the script and forked workers go on sharing: memory that objects hold, and any process may write to."""

# Arrays of any type.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.fingerprint.content import digest_of_array, joined, sample_of
from penstock.fingerprint.objects import QUICK_BYTES, Objects
from penstock.linux.forked_call import writable_shared_memory


def shared_memory_state(things: Mapping[str, Any]) -> str:
    """Digest the writable shared memory that objects hold: 64 MiB of it, and 64 pieces of each larger array."""
    walk = _SharedMemory()
    walk.digests(things)
    return joined(*walk.found).hex()


class _SharedMemory(Objects):
    """Digests arrays in shared memory, and nothing else of what it meets."""

    def __init__(self) -> None:
        super().__init__(quick=True)
        self.found: list[bytes] = []
        self._mapped = writable_shared_memory()
        self._left_bytes = QUICK_BYTES

    def array(self, path: str, thing: Any) -> bytes:
        if any(begin <= thing.ctypes.data < end for begin, end in self._mapped):
            is_whole = thing.nbytes <= self._left_bytes
            self._left_bytes -= thing.nbytes if is_whole else 0
            # A copy: of a mapped file its version would count, which may change later than its bytes.
            self.found.append(digest_of_array(np.array(thing)) if is_whole else sample_of(thing))
        return b""
