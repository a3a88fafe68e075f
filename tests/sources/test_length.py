"""A length is known, or not: then a source is fed without one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch.utils.data import DataLoader, Sampler

from penstock.sources.adapt import adapt


class Drawn(Sampler[int]):
    """A sampler that knows its length, or says in some way that it does not."""

    def __init__(self, error: type[Exception] | None) -> None:
        self.error = error

    def __len__(self) -> int:
        if self.error is None:
            return 4
        raise self.error

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


@pytest.mark.parametrize(
    ("error", "known"), [(None, (4, 2)), (TypeError, (None, None)), (NotImplementedError, (None, None))]
)
def test_a_sampler_that_does_not_know_its_length_is_fed_without_one(error, known):
    source = adapt(DataLoader(range(4), batch_size=2, sampler=Drawn(error)), segments=None, seed=0)  # type: ignore[arg-type]
    assert (source.samples, source.batches) == known
    source.close()
