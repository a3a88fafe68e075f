"""Errors travel from a feeder's process, and from workers."""

from __future__ import annotations

import pickle

import pytest

from penstock import errors
from penstock.errors import PenstockError, ReadFailed

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PenstockError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_can_be_made_of_its_message_and_pickled(kind: type[PenstockError]) -> None:
    assert str(pickle.loads(pickle.dumps(kind("the disk is on fire")))) == "the disk is on fire"


def test_what_an_error_tells_besides_is_pickled_too() -> None:
    failed = pickle.loads(pickle.dumps(ReadFailed("bad", "/data/x", 4096, 5)))
    assert (failed.path, failed.offset, failed.errno) == ("/data/x", 4096, 5)
