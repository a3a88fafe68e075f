"""Parts of the contracts that are shipped, for kinds of which the rest would run what another kind runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Contract = TypeVar("Contract", bound=type)

LOADING = ("every_sample_once", "holds_the_position", "into_slots", "whoever_loads")
"""Of a source's: what depends on the format that it reads, and not on its order alone."""
READING = ("every_byte", "than_the_depth", "fails_alone", "last_bytes", "that_shrinks", "written_after_close")
"""Of a reader's: what depends on how its storage answers."""


def only(*words: str) -> Callable[[Contract], Contract]:
    """Of a contract's tests, leave those of whose names one of these words is a part."""

    def trimmed(contract: Contract) -> Contract:
        tests = [name for name in dir(contract) if name.startswith("test_")]
        assert all(any(word in name for name in tests) for word in words), "no test has such a name any more"
        for name in tests:
            if not any(word in name for word in words):
                setattr(contract, name, None)
        return contract

    return trimmed
