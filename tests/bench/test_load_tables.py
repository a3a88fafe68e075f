"""Which loader of tables is the fastest: measured in turns, on one's own tables."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.bench.load import IMAGES, TABLES, LoadSettings
from penstock.bench.load_tables import files_of


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    for part in range(2):
        ids = range(500 * part, 500 * (part + 1))
        columns = {"id": [*ids], "x": [i / 2 for i in ids], "tokens": [[i] * (i % 5) for i in ids]}
        columns["texts"] = [["a", "b"]] * 500
        pq.write_table(pa.table(columns), tmp_path / f"{part}.parquet", row_group_size=100)
    return tmp_path


@pytest.mark.whole
def test_loaders_of_tables_that_are_installed_are_measured_and_shown(tables, command, tmp_path):
    words = [
        "--seconds",
        "1",
        "--batch-size",
        "4",
        "--repeats",
        "1",
        "--workers",
        "1",
        "--json",
        str(tmp_path / "found.json"),
    ]
    words += ["--columns", "id,tokens"]  # no loader takes the texts
    ran = command("bench", "load", f"{tables}/*.parquet", *words, "--loaders", "to_batches,in_memory")
    assert ran.returncode == 0, ran.stderr
    assert "rows/s" in ran.stdout and f"Columns id, tokens from {tables}/*.parquet" in ran.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["settings"]["columns"] == ["id", "tokens"]
    results = found["results"]
    assert {each["arm"] for each in results} == {"penstock", "to_batches", "in_memory"}
    assert all(each["figures"]["samples_per_s"] > 10 for each in results)
    assert {each["figures"]["decoder"] for each in results} == {f"pyarrow {pa.__version__}"}


@pytest.mark.whole
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nowhere/*.parquet",), "nowhere/*.parquet: no such files"),
        (("*.parquet", "--loaders", "dali"), "--loaders dali: choose of penstock, to_batches, datasets"),
        (("*.parquet", "--columns", "x,none"), "has no column 'none'; it has id, x, tokens"),
        ((".",), "nor is it '*.parquet', '*.arrow' or hf:FOLDER"),
    ],
)
def test_mistakes_are_said_in_words(command, tables, words, says):
    ran = command("bench", "load", *words, cwd=tables)
    assert ran.returncode == 2
    assert says in ran.stderr.replace("\n", " ")
    assert "Traceback" not in ran.stderr


def test_a_text_tells_tables_from_a_folder_of_images(tables):
    common = {"size": 1, "batch_size": 1, "workers": 1, "seconds": 1.0, "repeats": 1}
    kinds = {data: LoadSettings(folder=data, **common).kind for data in ("photos", "hf:x", "x/*.parquet")}
    assert kinds == {"photos": IMAGES, "hf:x": TABLES, "x/*.parquet": TABLES}
    (tables / "data-0.arrow").touch()
    assert files_of(f"hf:{tables}") == [str(tables / "data-0.arrow")]
