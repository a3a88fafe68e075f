"""A damaged store: no other figures, no traceback, every point of a whole block; what is gone is said."""

from __future__ import annotations

import csv
import os
import random
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.runs.store.groups import group

from penstock.cli.runs_show import facts_of, run_pages
from penstock.cli.runs_table import runs_table
from penstock.errors import BadSetting, StoreUnusable
from penstock.linux.process import start_ticks
from penstock.runs.export import export
from penstock.runs.store import SeriesWriter, Store
from penstock.runs.store.merged import compact, lost_points, read_names, read_series

NAMES = ["loss", "eval/loss", "genauigkeit µ", "lr", "step"]
COLUMNS = ["plan", "keeper", "tags", "began", "status", "reason", "exit_code", "group_id", "position", "note"]
AFTER = 1e6


class Written(NamedTuple):
    """A block: where it is in which file, what it declares, and its points: values that occur once."""

    file: str
    begin: int
    end: int
    names: list[str]
    points: list[tuple[str, float]]


def write(folder: Path, name: str, dice: random.Random, first: float) -> list[Written]:
    """Write a file of some blocks, the names declared one after the other."""
    path, value, written = folder / f"{name}.points", first, []
    known: list[str] = []
    with closing(SeriesWriter(path)) as writer:
        begin = path.stat().st_size
        for block in range(dice.randint(1, 6)):
            points = []
            for _ in range(dice.randint(1, 30)):
                points.append((dice.choice(NAMES[: block + 1]), value := value + 1))
                writer.add(*points[-1], time_s=value)
            writer.flush()
            new = [each for each in dict.fromkeys(name for name, _ in points) if each not in known]
            known += new
            written.append(Written(path.name, begin, begin := path.stat().st_size, new, points))
    return written


def read(folder: Path) -> set[float]:
    """Return the values that are read, each with its time and once."""
    found = read_series(folder)
    values = [value for series in found.values() for value in series.values.tolist()]
    assert len(values) == len(set(values)), "a point was read twice"
    for series in found.values():
        assert series.times_s.tolist() == series.values.tolist()
    return set(values)


def hit(content: bytes, dice: random.Random, turn: int) -> tuple[str, bytes]:
    """Damage a file in one of the ways of disks and of those who copy files."""
    kind = ["bit", "bits", "zeros", "noise", "elsewhere", "cut", "longer", "all"][turn % 8]
    found, size = bytearray(content), len(content)
    at = dice.randrange(size)
    stretch = slice(at, min(size, at + dice.choice([1, 8, 64, 512])))
    match kind:
        case "bit" | "bits":
            for at in dice.choices(range(size), k=1 if kind == "bit" else 3):
                found[at] ^= 1 << dice.randrange(8)
        case "zeros":
            found[stretch] = bytes(len(found[stretch]))
        case "noise":
            found[stretch] = dice.randbytes(len(found[stretch]))
        case "elsewhere":  # as a disk that writes a sector in the place of another
            other = dice.randrange(size)
            found[stretch] = (content[other:] + content)[: len(found[stretch])]
        case "cut":
            del found[at:]
        case "longer":
            found += dice.randbytes(dice.randint(30, 100))
        case _:
            found[:] = dice.randbytes(size)
    return kind, bytes(found)


def whole(blocks: list[Written], name: str, before: bytes, after: bytes) -> set[float]:
    """Return the values in a file's blocks that stand as they were, and whose names are declared in such."""
    standing = [
        each
        for each in blocks
        if each.file == name and before[each.begin : each.end] == after[each.begin : each.end]
    ]
    declared = {name for each in standing for name in each.names}
    return {value for each in standing for of, value in each.points if of in declared}


def tried(folder: Path, dice: random.Random, turn: int) -> Iterator[str]:
    """Damage one of a run's files of points; yield what is wrong then."""
    a, b = write(folder, "a", dice, 0), write(folder, "b", dice, 1000)
    name = dice.choice(["a.points", "b.points"])
    before = (folder / name).read_bytes()
    kind, after = hit(before, dice, turn)
    (folder / name).write_bytes(after)
    points = {value for each in (*a, *b) for _, value in each.points}
    expected = whole(a + b, name, before, after) | {
        value for each in (*a, *b) if each.file != name for _, value in each.points
    }
    if (found := read(folder)) != expected:
        yield f"{kind} in {name}: {len(found)} points instead of {len(expected)}"
    gone, said = len(points - found), lost_points(folder)
    if gone and not said and kind not in {"cut", "zeros"}:
        yield f"{kind} in {name}: {gone} points are gone, nothing is said"
    try:
        with closing(SeriesWriter(folder / name)) as writer:
            writer.add("after", AFTER, AFTER)
    except BadSetting:
        assert kind in {"all", "zeros", "noise", "elsewhere"}, "nothing in it is whole"
        return
    if kind not in {"cut", "zeros"} and not (folder / name).read_bytes().startswith(after):
        yield f"{kind} in {name}: the writer has cut something off"
    compact(folder)
    if read(folder) != expected | {AFTER} or said > lost_points(folder):
        yield f"{kind} in {name}: what is written and compacted then changes what there was"


def tried_compacted(folder: Path, dice: random.Random, turn: int) -> Iterator[str]:
    """Damage what is compacted; in one of two cases a killed process has left a file that was taken."""
    written = write(folder, "a", dice, 0)
    left = (folder / "a.points").read_bytes()
    compact(folder)
    points = {value for each in written for _, value in each.points}
    series = read_series(folder)
    before = (folder / "compacted").read_bytes()
    kind, after = hit(before, dice, turn)
    (folder / "compacted").write_bytes(after)
    is_left = dice.random() < 0.5
    if is_left:
        (folder / "a.points").write_bytes(left)
    found = read(folder)
    lost = lost_points(folder)
    if not found <= points:
        yield f"{kind}: other values"
    for name, each in series.items():  # a series is whole, or gone
        if (here := found & set(each.values.tolist())) and len(here) < len(each.values):
            yield f"{kind}: {name} has {len(here)} of {len(each.values)} points"
    gone = len(points - found)
    if lost != gone and not is_left if kind == "bit" else bool(lost) < bool(gone):
        yield f"{kind}: {gone} points are gone, {lost} said"
    if kind == "bit" and len(series) > 1 and not found:
        yield "one bit hides all series"
    compact(folder)
    if read(folder) != found or lost_points(folder) != lost:
        yield f"{kind}: compacting has changed what there was"


def tried_records(folder: Path, dice: random.Random, turn: int) -> Iterator[str]:
    """Damage a run's row, or what it ran in; look at all runs as the command line does."""
    with Store.open(folder) as store:
        one, other = store.add(group(2))
        for run in (one, other):
            store.ended(run.id, "finished", 0)
            write(store.folder_of(run.id) / "series", "a", dice, 0)
        stands = read(store.folder_of(other.id) / "series")
        column = [*COLUMNS, "environment", "folder"][turn % 12]
        content = dice.choice([dice.randbytes(9), b"\xff\xfe{}", b"[1]", b"", b'{"name": 5}', b'{"a": "\xff"}'])
        if column in COLUMNS:
            with closing(sqlite3.connect(folder / "runs.sqlite")) as database, database:
                value = dice.choice([content, "text", 5, content.decode(errors="replace")])
                database.execute(f"UPDATE runs SET {column} = ? WHERE id = ?", (value, one.id))
        elif column == "environment":
            (store.folder_of(one.id) / "environment.json").write_bytes(content)
        else:
            shutil.rmtree(store.folder_of(one.id))
    with Store.open(folder) as store:
        runs = store.runs()
        if {run.id for run in runs} != {one.id, other.id} or other.id not in [
            run.id for run in store.runs(other.group_id)
        ]:
            yield f"{column} = {content!r}: {runs}"
        runs_table(runs, {})
        run_pages(facts_of(store, [store.run(one.id), store.run(other.id)]))
        export(store, store.runs(), folder / "all.csv")
        with (folder / "all.csv").open() as file:
            values = [float(row["value"]) for row in csv.DictReader(file) if row["run"] == other.id]
        if set(values) != stands:
            yield f"{column} = {content!r}: the other run's points are others"
        store.remove([one.id])
        if [run.id for run in store.runs()] != [other.id]:
            yield f"{column} = {content!r}: not removed alone"


@pytest.mark.parametrize("tries", [51, pytest.param(2400, marks=pytest.mark.soak)])
def test_damages_change_no_figure_raise_nothing_and_hide_no_whole_block(tmp_path, tries):
    wrong: list[str] = []
    for number in range(tries):
        dice, folder = random.Random(number), tmp_path / f"{number}"
        trial = [tried, tried_compacted, tried_records][number % 3]
        try:
            wrong += [f"{number}: {what}" for what in trial(folder, dice, number // 3)]
        except Exception as error:
            wrong.append(f"{number}: {type(error).__name__}: {error}")
        shutil.rmtree(folder)
    assert not wrong, "\n".join([f"{len(wrong)} of {tries}", *wrong[:30]])


@pytest.mark.parametrize("column", ["plan", "tags", "exit_code"])
def test_a_damaged_row_of_a_run_that_goes_on_is_not_taken_for_one_that_has_ended(tmp_path, column):
    keeper = os.getpid(), start_ticks(os.getpid())
    with Store.open(tmp_path) as store:
        one, other = store.add(group(2))
        assert store.began(one.id, keeper=keeper, pid=os.getpid())
        with closing(sqlite3.connect(tmp_path / "runs.sqlite")) as database, database:
            database.execute(f"UPDATE runs SET {column} = ? WHERE id = ?", (b"\xff{", one.id))
        found = store.run(one.id)
        assert (found.name, found.status, found.keeper) == ("damaged", "running", keeper)
        with pytest.raises(BadSetting):
            store.remove([one.id])
        assert [run.id for run in store.runs()] == [one.id, other.id]


def three_blocks(folder: Path) -> tuple[Path, list[int]]:
    """Write three blocks, each with a name of its own and one of the first's; return where they end."""
    path, ends = folder / "a.points", []
    with closing(SeriesWriter(path)) as writer:
        for number, name in enumerate("abc"):
            writer.add("a", number, number)
            writer.add(name, 10 + number, 10 + number)
            writer.flush()
            ends.append(path.stat().st_size)
    return path, ends


@pytest.mark.parametrize("bit", range(0, 8 * 28, 5))
def test_a_bit_in_any_field_of_a_header_costs_its_block_alone_and_is_said(tmp_path, bit):
    path, ends = three_blocks(tmp_path)
    content = bytearray(path.read_bytes())
    content[ends[0] + bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    found = {name: series.values.tolist() for name, series in read_series(tmp_path).items()}
    assert found == {"a": [0, 2, 10], "c": [12]}
    assert lost_points(tmp_path) == 2


def test_points_of_names_whose_declaration_is_gone_count_as_lost(tmp_path):
    path, ends = three_blocks(tmp_path)
    content = bytearray(path.read_bytes())
    content[ends[0] - 1] ^= 1
    path.write_bytes(content)
    assert {name: series.values.tolist() for name, series in read_series(tmp_path).items()} == {
        "b": [11],
        "c": [12],
    }
    assert lost_points(tmp_path) == 2 + 2
    assert set(read_names(tmp_path)) == {"b", "c"}


def test_a_writer_goes_on_behind_damage_and_cuts_nothing_off(tmp_path):
    path, ends = three_blocks(tmp_path)
    content = bytearray(path.read_bytes())
    content[ends[1] + 3] ^= 1  # in the last block's header
    content[ends[0] + 40] ^= 1
    path.write_bytes(content)
    with closing(SeriesWriter(path)) as writer:
        writer.add("new", 3, 3)
        writer.add("a", 3, 3)
    assert path.read_bytes().startswith(content)
    assert {name: s.values.tolist() for name, s in read_series(tmp_path).items()} == {"a": [0, 3, 10], "new": [3]}
    assert lost_points(tmp_path) == 4
    compact(tmp_path)
    assert path.exists() and lost_points(tmp_path) == 4, "what is damaged stays as it is"


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.points", b"penstock points 1\n" + bytes(40)), ("compacted", b"penstock series 1\nabc")],
)
def test_a_file_of_another_format_is_refused_in_one_line(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    for use in (read_series, read_names, lost_points):
        with pytest.raises(StoreUnusable, match=r"has the format 'penstock \w+ 1', this .* 2' only") as raised:
            use(tmp_path)
        assert "\n" not in str(raised.value)
    if name == "a.points":
        with pytest.raises(StoreUnusable, match="has the format"):
            SeriesWriter(tmp_path / name)
    assert (tmp_path / name).read_bytes() == content


def test_what_is_gone_is_said_by_show_and_export(tmp_path):
    with Store.open(tmp_path / "store") as store:
        run, whole_one = store.add(group(2))
        path, ends = three_blocks(store.folder_of(run.id) / "series")
        content = bytearray(path.read_bytes())
        content[ends[0] + 40] ^= 1
        path.write_bytes(content)
        known, well = facts_of(store, [run, whole_one])
        assert re.match(rf"points of run {run.id} that are gone: about 2; .*are damaged", known.damage)
        assert known.fields()["damage"] == known.damage
        assert well.damage == ""
