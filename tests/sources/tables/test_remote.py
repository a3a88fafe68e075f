"""Tables in an object store."""

from __future__ import annotations

import pickle
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.object_store import put
from tests.sources.tables.files import numbers, saved, written

from penstock import Cache, RecordSource
from penstock.errors import BadSetting, ReadFailed

ROWS = 300


@pytest.fixture(scope="module", params=["parquet", "arrow"])
def files(request: pytest.FixtureRequest, s3: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Patterns of equal files in the bucket and on the disk."""
    folder = tmp_path_factory.mktemp("remote")
    for i in range(3):
        table = numbers(ROWS, i * ROWS).append_column("text", pa.array([f"{i} ü {j}" for j in range(ROWS)]))
        path = written(folder / f"{i}.{request.param}", table, 37)
        put(f"tables-{request.param}/{i}.{request.param}", Path(path).read_bytes())
    put(f"tables-{request.param}/below/9.{request.param}", b"of another data set")
    return f"s3://bucket/tables-{request.param}/*.{request.param}", str(folder / f"*.{request.param}")


def rows_of(pattern: Any, **options: Any) -> list[dict[str, list[Any]]]:
    with closing(RecordSource(pattern, workers=2, batch_size=25, **options)) as source:
        return [
            {name: leaf if isinstance(leaf, list) else leaf.tolist() for name, leaf in batch.items()}
            for batch in source
        ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle_bytes": 6000, "columns": ["id", "text"]},
        {"filter": "id < 450 and flag", "shuffle": False},
        {"columns": {"both": ["id", "half"]}, "seed": 3},
    ],
)
def test_a_bucket_gives_what_the_disk_gives(files, options):
    remote, local = files
    found = rows_of(remote, **options)
    assert found == rows_of(local, **options)
    assert sum(len(next(iter(batch.values()))) for batch in found) == (150 if "filter" in options else 3 * ROWS)


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_an_object_that_is_replaced_amid_reading_is_an_error_and_mixes_nothing(s3, tmp_path, ending):
    path = Path(written(tmp_path / f"x.{ending}", numbers(ROWS), 10))
    url = put(f"changing/x.{ending}", path.read_bytes())
    with closing(RecordSource(url, workers=1, batch_size=10, shuffle_bytes=600)) as source:
        reading = iter(source)
        seen = next(reading)["id"].tolist()
        written(path, numbers(ROWS, 1000), 10)
        put(f"changing/x.{ending}", path.read_bytes())
        with pytest.raises(ReadFailed, match=rf"changing/x.{ending} cannot be read: .*replaced since it was"):
            for batch in reading:
                seen += batch["id"].tolist()
        assert max(seen) < ROWS


def test_what_a_bucket_does_not_have_is_named(s3):
    with pytest.raises(BadSetting, match=r"none/\*\.parquet: there is no such object"):
        RecordSource("s3://bucket/none/*.parquet")
    with pytest.raises(ReadFailed, match=r"none\.parquet cannot be read"):
        RecordSource("s3://bucket/none.parquet")


@pytest.mark.whole
def test_what_hugging_face_saved_in_a_bucket_gives_what_the_disk_gives(s3, tmp_path):
    local = saved(tmp_path / "x", [numbers(ROWS), numbers(ROWS, ROWS)], 37)
    for path in (tmp_path / "x").iterdir():
        put(f"saved/x/{path.name}", path.read_bytes())
    put("saved/dataset_dict.json", b'{"splits": ["x"]}')
    for options in ({}, {"shuffle": False, "filter": "id > 400"}):
        assert rows_of("hf:s3://bucket/saved/x/", **options) == rows_of(local, **options)
    with pytest.raises(BadSetting, match=r"several data sets: name one of hf:s3://bucket/saved/x$"):
        RecordSource("hf:s3://bucket/saved")
    with pytest.raises(
        BadSetting, match=r"none/state\.json cannot be read: .*; give the folder that save_to_disk"
    ):
        RecordSource("hf:s3://bucket/none")


def test_a_source_with_a_cache_travels_before_it_has_read(files, tmp_path):
    remote, local = files
    with closing(RecordSource(remote, cache=Cache(tmp_path, "10MB"), batch_size=25, workers=1)) as source:
        travelled = pickle.dumps(source)
    with closing(pickle.loads(travelled)) as other:
        assert [batch["text"] for batch in other] == [batch["text"] for batch in rows_of(local)]
