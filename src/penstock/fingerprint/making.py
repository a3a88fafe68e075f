"""Makes a few samples in a forked child, and digests them there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from penstock.fingerprint.batch import Leaf
from penstock.linux.forked_call import ForkedCall

LIMIT_S = 2.0
_MOST_BYTES = 96 << 10

LeavesOf = Callable[[Sequence[int]], tuple[Leaf, ...]]
"""Makes the batch of the samples with some ids twice, in a process that ends afterwards; returns its leaves."""

_decode = msgspec.msgpack.Decoder(tuple[Leaf, ...] | str).decode


class Making:
    """A batch on its way in a child, which is killed after 2 s.

    Args:
        leaves_of: Makes the batch.
        ids: Its samples.
    """

    def __init__(self, leaves_of: LeavesOf, ids: Sequence[int]) -> None:
        self._call: ForkedCall | None = None
        self._result: tuple[Leaf, ...] | str | None = None
        try:
            self._call = ForkedCall(partial(_answer, leaves_of, ids), LIMIT_S)
        except OSError as error:  # no process, no memory or no descriptor is left
            self._result = f"no process could be forked to make them: {error}"

    @property
    def cpu_s(self) -> float:
        """CPU time that it took, once it is over."""
        return self._call.cpu_s if self._call else 0.0

    def result(self, wait_s: float = 0.0) -> tuple[Leaf, ...] | str | None:
        """Return its leaves, or why there are none; None while it is being made.

        Args:
            wait_s: Seconds to wait for it.
        """
        if self._result is None and self._call and (answer := self._call.answer(wait_s)) is not None:
            failed = f"making them took over {LIMIT_S:g} s, or ended the process"
            self._result = _decode(answer) if answer else failed
        return self._result

    def close(self) -> None:
        """End the child if it runs."""
        if self._call:
            self._call.close()


def _answer(leaves_of: LeavesOf, ids: Sequence[int]) -> bytes:
    try:
        encoded = msgspec.msgpack.encode(leaves_of(ids))
    except Exception as error:
        return msgspec.msgpack.encode(f"making them raised {type(error).__name__}: {error}"[:400])
    if len(encoded) > _MOST_BYTES:
        return msgspec.msgpack.encode("their batch has too many leaves")
    return encoded
