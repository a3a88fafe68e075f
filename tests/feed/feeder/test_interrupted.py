"""Ctrl-C ends a feeder in order, wherever it comes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock


def test_an_interrupt_amid_a_locks_own_code_is_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    feeder = penstock.Feeder(penstock.ArraySource({"id": np.arange(10)}, batch_size=5), "feed")
    changed: Any = feeder._server.changed  # pyright: ignore[reportPrivateUsage]
    released = changed._release_save

    def interrupted() -> None:
        released()
        raise KeyboardInterrupt  # after the lock was released, and before its user knows

    monkeypatch.setattr(changed, "_release_save", interrupted)
    with penstock.attach("feed", 5) as loader:
        with pytest.raises(KeyboardInterrupt):
            feeder.run()
        with pytest.raises(penstock.FeedStopped, match="interrupted"):
            for _ in range(10):
                next(iter(loader))
