"""Samples of shards from a cache are those that come without it."""

from __future__ import annotations

import os
import time
from contextlib import closing
from typing import Any

import pytest
from tests.sources.records.writers import write_mds

from penstock import Cache, RecordSource
from penstock.errors import BadSetting

ROWS = 40


def test_samples_come_from_the_cache_as_they_are_stored_and_pixels_are_refused(tmp_path):
    samples = [{"id": i, "text": "ü" * i} for i in range(ROWS)]
    folder = write_mds(tmp_path / "mds", {"id": "int", "text": "str"}, samples, each=15)
    for path in folder.iterdir():
        os.utime(path, (1e9, 1e9))
    time.sleep(0.15)  # files that were written just now are not kept

    def made(cache: Cache | None) -> RecordSource:
        return RecordSource(f"mds:{folder}", cache=cache, batch_size=8, workers=2)

    def batches(source: RecordSource) -> list[Any]:
        return [(batch["id"].tolist(), batch["text"]) for batch in source]

    with closing(made(None)) as plain:
        expected = batches(plain)
    for seen in ("0% of 40", "100% of 40"):
        with closing(made(Cache(tmp_path / "cache", "10MB"))) as source:
            assert batches(source) == expected
            assert f"{seen} came from the cache" in source.description
    with pytest.raises(BadSetting, match='keep="pixels": samples are kept as they are; leave keep out'):
        made(Cache(tmp_path / "cache", "10MB", keep="pixels"))
