"""A node makes the very blocks that the feeder would load, or says what hinders it."""

from __future__ import annotations

import pickle
import random
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.sources.drawing import Drawing, DrawingStream
from tests.sources.images.pictures import jpeg, noise
from tests.sources.tables.files import written
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

import penstock
from penstock.contracts import Cursor, Ids
from penstock.errors import BadSetting, SourceError
from penstock.linux.forked_call import ForkedCall
from penstock.sources.adapt import adapt
from penstock.sources.packed.packing import pack
from penstock.sources.remote.maker import MadeBlock, MakerSpec, NodeMaker, maker_spec_of
from penstock.sources.remote.remote_source import RemoteSource
from penstock.testing.source import bits_of

SEED, ROWS, HANG_S = 3, 37, 60.0


MakerOf = Callable[[MakerSpec], NodeMaker]


@pytest.fixture
def maker_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakerOf]:
    """Makes makers of blocks, which may change where this process finds modules, until the test ends."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    with ExitStack() as stack:
        yield lambda maker_spec: stack.enter_context(closing(NodeMaker(maker_spec)))


def images(folder: Path) -> penstock.ImageSource:
    for i in range(ROWS):
        path = folder / "images" / f"{i % 3}" / f"{i:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(noise(20, 30, i)))
    return penstock.ImageSource(folder / "images", size=16, batch_size=8, workers=1, seed=SEED)


def texts(folder: Path) -> penstock.RecordSource:
    table = pa.table({"id": range(ROWS), "text": [f"the {i}th" for i in range(ROWS)]})
    return penstock.RecordSource(written(folder / "x.parquet", table), batch_size=8, seed=SEED)


def numbers(folder: Path) -> penstock.RecordSource:
    table = pa.table({"id": range(ROWS), "half": [i / 2 for i in range(ROWS)]})
    return penstock.RecordSource(written(folder / "x.parquet", table), batch_size=8, seed=SEED)


def packed(folder: Path, rows: int = ROWS) -> str:
    shutil.rmtree(folder / "packed", ignore_errors=True)
    pack({"id": np.arange(rows), "wide": np.arange(rows * 9).reshape(rows, 9)}, folder / "packed")
    return f"packed:{folder / 'packed'}"


def drawing(_: Path) -> DataLoader[Any]:
    return DataLoader(Drawing(ROWS), batch_size=8, shuffle=True)


def maker_spec_of_loader(loader: Any) -> MakerSpec:
    source: Any = adapt(loader, segments=None, seed=SEED)
    return pickle.loads(pickle.dumps(maker_spec_of(loader, source, None, SEED)))


def plans_of(source: Any) -> list[tuple[Any, int]]:
    """Plan two cycles, of the second of which a third is left out, in any order."""
    plans = [(plan, 0) for plan in source.plans(Cursor(0, 0))]
    plans += [(plan, 1) for plan in source.plans(Cursor(1, 0), _two_of_three)]
    random.Random(0).shuffle(plans)
    return plans


def _two_of_three(_: int, ids: Ids) -> Any:
    return ids % 3 != 0


def made(maker: NodeMaker, plan: Any, cycle: int) -> Any:
    block = maker.make(plan, cycle)
    tree = block.placement.copied(block.memory, block.rows) if isinstance(block, MadeBlock) else block
    return bits_of(plan.block(tree))


def loaded(source: Any, plan: Any, cycle: int) -> Any:
    (block,) = source.load(iter([plan]), cycle)
    return bits_of(block)


@pytest.mark.parametrize("make", [images, numbers, packed, drawing, texts])
def test_what_a_node_makes_is_what_the_feeder_loads(make, tmp_path, maker_of):
    loader = make(tmp_path)
    maker = maker_of(maker_spec_of_loader(loader))
    assert maker.check() == ""
    source: Any = adapt(loader, segments=None, seed=SEED)
    plans = plans_of(source)
    assert isinstance(maker.make(*plans[0]), MadeBlock) == (make is not texts)
    for plan, cycle in plans:
        assert made(maker, plan, cycle) == loaded(source, plan, cycle)
    source.close()


@pytest.mark.whole
def test_a_node_is_as_a_worker_of_a_loader_that_has_some(tmp_path: Path) -> None:
    loader = DataLoader(Drawing(ROWS), batch_size=8, shuffle=True, num_workers=2, worker_init_fn=warn_of_one)
    maker_spec = maker_spec_of_loader(loader)
    source: Any = adapt(loader, segments=None, seed=SEED)
    plans = plans_of(source)

    def make() -> bytes:
        maker = NodeMaker(maker_spec)
        return pickle.dumps([maker.check(), *(made(maker, plan, cycle) for plan, cycle in plans)])

    answer = ForkedCall(make, HANG_S).answer(HANG_S)
    assert answer
    assert pickle.loads(answer) == ["", *(loaded(source, plan, cycle) for plan, cycle in plans)]


def warn_of_one(worker: int) -> None:
    assert worker in (0, 1)


class Late(Dataset[dict[str, int]]):
    """Samples of which one is bad, until it is mended."""

    bad = 5

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> dict[str, int]:
        if i == Late.bad:
            raise OSError(f"sample {i} is torn")
        return {"id": i}


def test_a_block_that_fails_leaves_what_comes_after_it_as_it_was(monkeypatch, maker_of):
    loader = DataLoader(Late(), batch_size=4)
    monkeypatch.setattr(Late, "bad", -1)
    maker = maker_of(maker_spec_of_loader(loader))
    assert maker.check() == ""
    source: Any = adapt(loader, segments=None, seed=SEED)
    plans = plans_of(source)
    made(maker, *plans[0])
    for bad in range(ROWS):
        monkeypatch.setattr(Late, "bad", bad)
        plan, cycle = plans[bad % len(plans)]
        if bad in plan.ids:
            with pytest.raises(OSError, match="torn"):
                maker.make(plan, cycle)
        else:
            assert made(maker, plan, cycle) == loaded(source, plan, cycle)


def test_an_image_that_is_torn_fails_its_block_and_no_other(tmp_path: Path, maker_of: MakerOf) -> None:
    source = images(tmp_path)
    maker = maker_of(maker_spec_of_loader(source))
    assert maker.check() == ""
    torn = ROWS // 2
    Path(source.paths[torn]).write_bytes(b"torn")
    failed = 0
    for plan, cycle in plans_of(source):
        if torn in plan.ids:
            failed += 1
            with pytest.raises(SourceError, match="jpg"):
                maker.make(plan, cycle)
        else:
            assert made(maker, plan, cycle) == loaded(source, plan, cycle)
    assert failed
    source.close()


def test_a_node_with_fewer_rows_says_so(tmp_path: Path, maker_of: MakerOf) -> None:
    maker = maker_of(maker_spec_of_loader(packed(tmp_path)))
    packed(tmp_path, ROWS - 1)
    assert maker.check() == "its data are others, or fewer, than the feeder's"


def test_a_node_without_the_data_says_so(tmp_path: Path, maker_of: MakerOf) -> None:
    maker = maker_of(maker_spec_of_loader(images(tmp_path)))
    shutil.rmtree(tmp_path / "images")
    assert maker.check().startswith("it cannot load the data: ")
    maker = maker_of(maker_spec_of_loader(packed(tmp_path)))
    shutil.rmtree(tmp_path / "packed")
    assert "there is no such folder" in maker.check()


def test_a_node_whose_files_have_the_same_names_and_other_content_says_which_sample_differs(tmp_path, maker_of):
    maker_spec = maker_spec_of_loader(images(tmp_path))
    for path in (tmp_path / "images").rglob("*.jpg"):
        path.write_bytes(jpeg(noise(20, 30, 100)))
    said = maker_of(maker_spec).check()
    assert said == f"it makes batch[0] of sample {maker_spec.witness[0].ids[0]} otherwise than the feeder"


class FromFiles(Dataset[int]):
    """Reads a sample's file where it is asked for."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Any:
        return list(Path(self.paths[i]).read_bytes()[-64:])


@pytest.mark.parametrize("batch_size", [1, 8, 50])
@pytest.mark.parametrize("what", ["files", "images"])
def test_a_node_one_in_ten_of_whose_samples_is_stale_is_found_out(
    what, batch_size, tmp_path, maker_of, monkeypatch
):
    monkeypatch.setattr("penstock.sources.remote.maker._WITNESSED_S", HANG_S)  # however busy this machine is
    stale = np.random.default_rng(0).permutation(300)[:30]

    def write(changed: Ids) -> Any:
        for i in range(300) if not len(changed) else changed:
            (tmp_path / f"{i:03}.jpg").write_bytes(jpeg(noise(20, 30, i + len(changed))))
        found = penstock.ImageSource(tmp_path, size=16, batch_size=batch_size, workers=1, seed=SEED)
        files = DataLoader(FromFiles(found.paths), batch_size=batch_size, shuffle=True)
        return files if what == "files" else found

    maker_spec = maker_spec_of_loader(write(stale[:0]))
    assert maker_of(maker_spec).check() == ""
    write(stale)
    said = maker_of(maker_spec).check()
    assert said.startswith("it makes batch") and said.endswith("otherwise than the feeder")


@pytest.mark.parametrize("bad", [3, 9, 30])
def test_a_bad_sample_beyond_the_first_ends_no_feed_before_its_turn(bad, monkeypatch, maker_of):
    monkeypatch.setattr(Late, "bad", bad)
    loader = DataLoader(Late(), batch_size=1)
    if bad == 3:  # which comes first, with seven others
        loader = DataLoader(Late(), batch_size=8)
        with pytest.raises(OSError, match="torn"):
            maker_spec_of_loader(loader)
        return
    assert maker_of(maker_spec_of_loader(loader)).check() == ""


def test_a_node_that_runs_other_versions_names_its_own_and_the_feeders(tmp_path: Path, maker_of: MakerOf) -> None:
    maker_spec = maker_spec_of_loader(drawing(tmp_path))
    own, python, numpy = maker_spec.versions
    other = maker_spec._replace(versions=(own, "Python 3.0.1", "NumPy 1.0"))
    said = f"it runs {python} where the feeder has Python 3.0.1 and {numpy} where the feeder has NumPy 1.0"
    assert maker_of(other).check() == said


def test_a_node_that_lacks_a_module_says_so(tmp_path, monkeypatch, maker_of):
    module = tmp_path / "only_here.py"
    module.write_text("class Data(list): pass")
    monkeypatch.syspath_prepend(tmp_path)
    from only_here import Data  # pyright: ignore

    maker_spec = maker_spec_of_loader(DataLoader(Data(range(ROWS)), batch_size=8))
    del sys.modules["only_here"]
    module.rename(tmp_path / "elsewhere.py")
    assert maker_of(maker_spec).check() == (
        "it cannot load the data: ModuleNotFoundError: No module named 'only_here'"
    )


class OwnGenerator(Dataset[dict[str, Any]]):
    """Draws from a generator that nobody seeds anew, made where the data set is, or where it is read."""

    def __init__(self, seed: int | None) -> None:
        self.generator = None if seed is None else np.random.default_rng(seed)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"id": i, "drawn": (self.generator or np.random.default_rng()).random()}


@pytest.mark.parametrize("seed", [0, None])
def test_a_data_set_whose_draws_cannot_be_seeded_is_found_out(seed: int | None, maker_of: MakerOf) -> None:
    said = maker_of(maker_spec_of_loader(DataLoader(OwnGenerator(seed), batch_size=8))).check()
    assert said == (
        "it makes batch['drawn'] of sample 0 otherwise each time: its draws are not those of global generators"
    )


class Locked(Drawing):
    def __init__(self) -> None:
        super().__init__(ROWS)
        self.lock = threading.Lock()


def test_a_loader_that_cannot_travel_is_refused_with_the_remedy() -> None:
    with pytest.raises(BadSetting, match=r'workers="ray": a DataLoader cannot be sent .*lock.* Let it open'):
        maker_spec_of_loader(DataLoader(Locked(), batch_size=8))


class Again:
    def __iter__(self) -> Iterator[Any]:
        yield {"id": np.arange(3)}


@pytest.mark.parametrize(
    "loader",
    [
        Again(),
        DataLoader(DrawingStream(ROWS), batch_size=8),
        DataLoader(Drawing(ROWS), batch_size=8, sampler=WeightedRandomSampler([1.0] * ROWS, ROWS)),
        DataLoader(Drawing(ROWS), batch_size=None),
    ],
    ids=["batches", "stream", "sampler", "whole batches"],
)
def test_what_makes_no_block_by_itself_is_refused_with_the_reason(loader: Any) -> None:
    source = adapt(loader, segments=None, seed=SEED)
    with pytest.raises(BadSetting, match=r'^workers="ray": the blocks of .* cannot be made one by one'):
        RemoteSource(loader, source, None, segments=None, seed=SEED)
