"""``penstock feed records:...``: tables are fed as the words say."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import started

import penstock

ROWS = 2000


@pytest.fixture
def table(tmp_path: Path) -> Path:
    ids = list(range(ROWS))
    columns = {
        "id": ids,
        "x": [None if i % 10 == 0 else i / 2 for i in ids],
        "label": [i % 4 for i in ids],
        "tokens": [[i] * (i % 3) for i in ids],
    }
    pq.write_table(pa.table(columns), tmp_path / "table.parquet", row_group_size=100)
    return tmp_path


@pytest.fixture
def feed(table: Path) -> Iterator[Callable[..., str]]:
    """Feeds the table, and returns the first line that is said."""
    with ExitStack() as stack:

        def start(*words: str) -> str:
            process = started("feed", "records:*.parquet", *words, "--name", "rows", cwd=table)
            stack.callback(process.communicate, timeout=20)
            stack.callback(process.send_signal, signal.SIGINT)
            assert process.stdout is not None
            return process.stdout.readline()

        yield start


def test_columns_a_filter_and_what_stands_for_nulls_are_given_as_words(feed):
    said = feed("columns=id,x", "batch_size=64", "filter=label < 2", "fill=-1", "shuffle_bytes=1MiB")
    assert "from 1,000 rows in 20 row groups of " in said
    with penstock.attach("rows", 100) as loader:
        batches = list(loader)
    assert [*batches[0]] == ["id", "x"]
    ids, x = (np.concatenate([batch[name] for batch in batches]) for name in ("id", "x"))
    assert sorted(ids) == [i for i in range(ROWS) if i % 4 < 2]
    assert x.tolist() == np.where(ids % 10 == 0, -1, ids / 2).tolist()


def test_the_first_line_says_how_well_a_table_is_shuffled_that_does_not_fit(feed):
    said = feed("columns=id", "batch_size=100", "shuffle_bytes=4KiB")
    assert "shuffled 2 at a time: a block has rows of 10.0% of them" in said
    with penstock.attach("rows", 100) as loader:
        assert sorted(np.concatenate([batch["id"] for batch in loader])) == list(range(ROWS))


def test_rows_of_different_length_are_fed(feed):
    feed("columns=id,tokens", "ragged=pack")
    with penstock.attach("rows", 128) as loader:
        for batch in loader:
            assert batch["tokens"].lengths.tolist() == (batch["id"] % 3).tolist()


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("columns=id,y", "has no column 'y'; it has id, x, label, tokens"),
        ("colums=id", "has no option 'colums'; did you mean columns?"),
        ("filter=y<3", "filter='y<3': "),
        ("shuffle_bytes=much", "shuffle_bytes='much': give bytes"),
        ('fill={"y": 0}', "fill= names 'y', which is not read"),
        ("decode=f", "decode=f: a function is given in Python"),
    ],
)
def test_a_mistake_in_a_word_is_said(command, table, word, says):
    failed = command("feed", "records:table.parquet", word, "ragged=pack", "--name", "x", cwd=table)
    assert failed.returncode == 2
    assert says in failed.stderr.replace("\n", " ")
    assert "Traceback" not in failed.stderr
