"""Connections that have asked nothing: whoever reaches the port can make many, which would keep the owner out."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

_MOST_WAITING = 64


class Connection(H11Protocol):
    """A connection that makes room for a newer one if more than 64 wait for a request, or for the rest of one."""

    made_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait; the one that was made first goes if they are too many."""
        super().connection_made(transport)
        self.made_s = monotonic()
        connections: set[Any] = self.connections
        waiting = [each for each in connections if each.waits]
        if len(waiting) > _MOST_WAITING:
            min(waiting, key=lambda each: each.made_s).transport.abort()

    @property
    def waits(self) -> bool:
        """Whether it has no request that is being answered."""
        cycle: Any = self.cycle  # None until the first
        return not self.transport.is_closing() and (cycle is None or cycle.response_complete)
