"""The contract of records with fields: each sample lies in one place, whose bytes anybody parses in one way."""

from __future__ import annotations

import os
import pickle
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.contracts import FieldRecords
from penstock.errors import ReadFailed
from penstock.sources.records.files import read


class FieldRecordsContract(ABC):
    """Tests of records with fields; a subclass named ``Test...`` runs them."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    @abstractmethod
    def samples(self) -> list[dict[str, Any]]:
        """Return the fields of some samples, in their order."""

    @abstractmethod
    def make(self) -> FieldRecords:
        """Make the records of these samples, in several files of ``folder``, which may be there already."""

    def file_of(self, records: FieldRecords, record: int) -> Path:
        """Return the file that was given, and that holds a sample."""
        return Path(records.places(np.array([record]))[0].path)

    def test_every_sample_comes_once_and_in_order_with_its_fields(self) -> None:
        records, expected = self.make(), self.samples()
        places = records.places(np.arange(len(expected)))
        assert len(records.names) == len(expected) == sum(count for _, count in records.parts)
        assert len(records.parts) > 1 and records.root and records.description
        for place, sample in zip(places, expected, strict=True):
            _assert_same(records.parse(read(place)), sample)

    def test_samples_are_found_in_any_order_and_again_by_others(self) -> None:
        records = self.make()
        all_of_them = records.places(np.arange(len(records.names)))
        chosen = np.random.default_rng(0).permutation(len(all_of_them))[:9]
        assert records.places(chosen) == self.make().places(chosen) == [all_of_them[i] for i in chosen]

    def test_no_two_samples_lie_in_the_same_bytes(self) -> None:
        records = self.make()
        ends: dict[str, int] = {}
        for path, offset, nbytes, etag, _ in sorted(records.places(np.arange(len(records.names)))):
            assert nbytes and etag
            assert ends.get(path, 0) <= offset <= offset + nbytes <= os.stat(path).st_size
            ends[path] = offset + nbytes

    def test_each_sample_has_all_fields_and_each_field_one_type(self) -> None:
        records = self.make()
        parsed = [records.parse(read(place)) for place in records.places(np.arange(len(records.names)))]
        for name, kind in records.fields.items():
            assert kind
            assert len({_type_of(sample[name]) for sample in parsed}) == 1 or kind == "json"
        assert all([*sample] == [*records.fields] for sample in parsed)

    def test_what_parses_can_go_to_another_process(self) -> None:
        records = self.make()
        (place,) = records.places(np.array([1]))
        _assert_same(pickle.loads(pickle.dumps(records.parse))(read(place)), records.parse(read(place)))

    @pytest.mark.parametrize("seed", range(5))
    def test_damaged_bytes_are_a_value_error_or_other_values_and_nothing_else(self, seed: int) -> None:
        records, rng = self.make(), np.random.default_rng(seed)
        for place in records.places(np.arange(len(records.names))):
            whole = read(place)
            for _ in range(20):
                damaged = bytearray(whole[: rng.integers(len(whole)) if rng.random() < 0.3 else None])
                for at in rng.integers(0, max(1, len(damaged)), rng.integers(1, 4)) if damaged else ():
                    damaged[at] = rng.integers(256)
                with suppress(ValueError):
                    assert [*records.parse(bytes(damaged))] == [*records.fields]

    def test_a_file_that_is_replaced_while_it_is_read_is_noticed(self) -> None:
        records = self.make()
        last = len(records.names) - 1
        path = self.file_of(records, last)
        other = path.with_name("other")
        other.write_bytes(path.read_bytes())
        other.replace(path)
        records.check_unchanged(np.array([0]))
        with pytest.raises(ReadFailed, match="replaced") as caught:
            records.check_unchanged(np.array([0, last]))
        assert str(path) in str(caught.value)


def _type_of(value: Any) -> tuple[Any, Any]:
    return value.__class__, getattr(value, "dtype", None)


def _assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert {*found} == {*expected}
    for name, value in expected.items():
        assert _type_of(found[name]) == _type_of(value), name
        np.testing.assert_array_equal(found[name], value)
