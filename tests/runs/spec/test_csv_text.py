"""Cells of CSV text can be replaced one by one; every other byte stays."""

from __future__ import annotations

import csv
import io
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadSetting
from penstock.runs.spec import radt
from penstock.runs.spec.radt import replaced

records_of = partial(radt.records_of, Path("it.csv"))

# The csv module of Python 3.11 does not quote a lone carriage return.
TEXTS = st.lists(st.sampled_from([*'ab,"\n\t é\0|', "\r\n"]), max_size=5).map("".join)
TABLES = st.integers(2, 4).flatmap(
    lambda width: st.lists(st.lists(TEXTS, min_size=width, max_size=width), min_size=1, max_size=4)
)
ENDS = st.sampled_from(["\n", "\r\n"])
QUOTING = st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])


def written(table: list[list[str]], end: str, quoting: int) -> str:
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator=end, quoting=quoting).writerows(table)
    return file.getvalue()


@settings(max_examples=100)
@given(TABLES, ENDS)
def test_any_text_that_the_csv_module_quotes_is_read_as_it_was(table: list[list[str]], end: str):
    read = records_of(written(table, end, csv.QUOTE_ALL))
    assert [[cell.text for cell in record.cells] for record in read] == table


@settings(max_examples=100)
@given(TABLES, ENDS, QUOTING, st.booleans(), st.data())
def test_replacing_one_cell_changes_no_other_byte(table, end, quoting, has_end, data):
    text = written(table, end, quoting)
    if not has_end:
        text = text.removesuffix(end)
    records = records_of(text)
    row = data.draw(st.sampled_from(records))
    place = data.draw(st.integers(0, len(row.cells) - 1))
    new = data.draw(TEXTS)
    cell = row.cells[place]
    after = replaced(text, {cell: new})
    assert after.startswith(text[: cell.begin]) and after.endswith(text[cell.end :])
    before = [[cell.text for cell in record.cells] for record in records]
    before[records.index(row)][place] = new
    assert [[cell.text for cell in record.cells] for record in records_of(after)] == before


def test_spaces_that_align_columns_and_a_byte_order_mark_are_no_content():
    (record, second) = records_of('\ufeffName ,  "a ""b"", c" , d\r\n\r\n 1,2, 3')
    assert [cell.text for cell in record.cells] == ["Name", 'a "b", c', "d"]
    assert [cell.text for cell in second.cells] == ["1", "2", "3"]
    assert (record.line, second.line) == (1, 3)


def test_lines_are_counted_within_quotes_too():
    assert [record.line for record in records_of('a,"x\ny\r\nz"\nb,c\n')] == [1, 4]


@pytest.mark.parametrize("text", ['a,b\nc,"d\n', 'a,b\nc,"d" e\n'])
def test_a_quote_without_an_end_has_a_line(text: str):
    with pytest.raises(BadSetting, match=r'it.csv:2: a cell that begins with "'):
        records_of(text)
