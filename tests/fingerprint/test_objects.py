"""Two data sets have one name if they hold the same, in any process; else what differs is told."""

from __future__ import annotations

import functools
import importlib
import mmap
import multiprocessing
import os
import random
import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.scripts import run_python

from penstock.errors import BadSetting, Untravelled
from penstock.fingerprint.code import version_of
from penstock.fingerprint.comparison import Fingerprint, fingerprint_difference
from penstock.fingerprint.content import place_in_file
from penstock.fingerprint.objects import fingerprint_of_objects, small_state
from penstock.fingerprint.shared_memory import shared_memory_state


class Thing:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def of(thing: Any) -> Fingerprint:
    return fingerprint_of_objects({"dataset": thing})


def difference(one: Any, other: Any) -> str:
    return fingerprint_difference(of(one), of(other))


def looped(*values: Any) -> list[Any]:
    loop: list[Any] = [*values]
    loop.append(loop)
    return loop


def closure(n: int) -> Any:
    return lambda: n


def torch_generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Pair:
    """Objects that hold each other."""

    def __init__(self, *values: int, second: bool = False) -> None:
        one, other = Thing(value=values[0]), Thing(value=values[1])
        self.one, self.other = one, other
        one.back, other.back = self, (other if second else self)


MADE: dict[str, Any] = {
    "a number": lambda: 1,
    "a number as text": lambda: "1",
    "a number as bytes": lambda: b"1",
    "a fraction": lambda: 1.0,
    "truth": lambda: True,
    "no number": lambda: float("nan"),
    "nothing": lambda: None,
    "a path": lambda: Path("1"),
    "a list": lambda: [1, 2],
    "a tuple": lambda: (1, 2),
    "a list in another order": lambda: [2, 1],
    "lists": lambda: [[1], [2]],
    "lists cut elsewhere": lambda: [[], [1, 2]],
    "a dict": lambda: {"a": 1, "b": 2},
    "a dict in another order": lambda: {"b": 2, "a": 1},
    "a set": lambda: {"a", "b"},
    "a frozen set": lambda: frozenset({"a", "b"}),
    "a set of anything": lambda: {("a", 1), 2, Path("b"), frozenset({3})},
    "another set of anything": lambda: {("a", 1), 2, Path("b"), frozenset({4})},
    "a list in itself": lambda: looped(1),
    "another list in itself": lambda: looped(2),
    "objects that hold each other": lambda: Pair(1, 2),
    "others that hold each other": lambda: Pair(1, 3),
    "objects that hold each other otherwise": lambda: Pair(1, 2, second=True),
    "an array": lambda: np.arange(6),
    "an array of another type": lambda: np.arange(6).astype(np.float64),
    "an array of another shape": lambda: np.arange(6).reshape(2, 3),
    "its transpose": lambda: np.arange(6).reshape(2, 3).T,
    "an array of objects": lambda: np.array(["a", {"b"}], dtype=object),
    "another array of objects": lambda: np.array(["a", {"c"}], dtype=object),
    "an array of nothing": lambda: np.zeros((0, 3)),
    "records": lambda: np.zeros(2, [("a", "i4"), ("b", "f8")]),
    "a number of numpy": lambda: np.int64(1),
    "another number of numpy": lambda: np.int32(1),
    "many": lambda: list(range(1000)),
    "many others": lambda: [*range(999), 0],
    "many pairs": lambda: [(f"/{i}", i) for i in range(1000)],
    "many things": lambda: [Thing(i=i) for i in range(100)],
    "many other things": lambda: [Thing(i=max(i, 1)) for i in range(100)],
    "many sets": lambda: [{f"{i}", "a"} for i in range(100)],
    "many others sets": lambda: [{f"{i}", "b"} for i in range(100)],
    "many in itself": lambda: looped(*range(100)),
    "many others in itself": lambda: looped(*range(1, 101)),
    "a partial": lambda: functools.partial(min, 1, key=abs),
    "another partial": lambda: functools.partial(min, 1, key=hash),
    "a lambda": lambda: lambda: 1,
    "another lambda": lambda: lambda: 2,
    "a closure": lambda: closure(1),
    "another closure": lambda: closure(2),
    "a method": lambda: Thing(a=1).__init__,
    "another object's method": lambda: Thing(a=2).__init__,
    "a class": lambda: Thing,
    "another class": lambda: Pair,
    "a module": lambda: os,
    "an object": lambda: Thing(a=1),
    "another object": lambda: Thing(a=2),
    "an object with another attribute": lambda: Thing(b=1),
}


def test_different_things_have_different_names_and_equal_ones_one() -> None:
    digests = {name: of(make()).digest for name, make in MADE.items()}
    assert digests == {name: of(make()).digest for name, make in MADE.items()}
    same = [(a, b) for a in digests for b in digests if a < b and digests[a] == digests[b]]
    assert same == []


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (Thing(size=224), Thing(size=256), ".size is 224 there and 256 in yours"),
        ([Thing(size=1)], [Thing(size=2)], "[0].size is 1 there and 2 in yours"),
        ([1, Pair(1, 2)], [1, Thing(size=1)], "[1] is Pair there and Thing in yours"),
        ({"lr": 0.1}, {"lr": 0.2}, "['lr'] is 0.1 there and 0.2 in yours"),
        (["a"] * 1000, ["a"] * 1001, " is list of 1,000 there and list of 1,001 in yours"),
        (["a"] * 1000, ["b"] * 1000, " differs"),
        (np.zeros(3), np.ones(3), " differs"),
    ],
)
def test_what_differs_is_told_by_its_path(one: Any, other: Any, told: str) -> None:
    assert difference(Thing(held=one), Thing(held=other)).startswith(f"dataset.held{told}")
    assert difference(one, one) == "its code, or a value that it uses, differs"


@pytest.mark.parametrize(
    ("thing", "told"),
    [
        (threading.Lock(), "lock"),
        (sys.__stdout__, "TextIOWrapper"),
        ((i for i in range(3)), "generator"),
        ([threading.Lock()] * 100, "lock"),
    ],
)
def test_what_cannot_go_to_another_process_is_told(thing: Any, told: str) -> None:
    with pytest.raises(Untravelled, match=rf"dataset\.held.*cannot go to another process.*{told}") as caught:
        of(Thing(held=thing))
    assert isinstance(caught.value, BadSetting)


class Unready(Thing):
    def __getstate__(self) -> Any:
        return {"names": vars(self)["names"]}


def test_what_a_method_raises_on_the_way_to_another_process_is_told_with_its_name() -> None:
    """As it was found: ``cannot go to another process: 'names'``."""
    told = r"dataset.held \(Unready\) cannot go to another process: Unready.__getstate__ raised KeyError: 'names'$"
    with pytest.raises(Untravelled, match=told):
        of(Thing(held=Unready()))


class Turned(Thing):
    def __getitem__(self, i: int) -> Any:
        return torch.pi * torch.nn.functional.relu(torch.ones(i))


class Plain(Thing):
    def __getitem__(self, i: int) -> Any:
        return i


def test_what_is_used_of_a_library_is_told_by_its_whole_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was found: ``yours uses torch``."""
    before = of(Turned())
    told = fingerprint_difference(of(Plain()), before)
    assert "yours uses Turned, torch.pi, the version of torch" in told
    monkeypatch.setattr(torch.nn.functional, "relu", lambda x: x + 1)
    told = fingerprint_difference(before, of(Turned()))
    assert "torch.nn.functional.relu" in told and told.endswith(", which the feed's does not"), told


def test_a_tensor_that_is_not_on_the_host_is_told() -> None:
    with pytest.raises(Untravelled, match=r"dataset\.x is a tensor on meta"):
        of(Thing(x=torch.empty(3, device="meta")))


def test_of_two_objects_that_share_a_third_equal_ones_need_not() -> None:
    shared = [1, 2]
    assert of(Thing(a=shared, b=shared)).digest == of(Thing(a=[1, 2], b=[1, 2])).digest


@pytest.mark.parametrize("of_seed", [np.random.default_rng, np.random.RandomState, random.Random, torch_generator])
def test_random_generators_do_not_count(of_seed: Any) -> None:
    assert of(Thing(rng=of_seed(1))) == of(Thing(rng=of_seed(2)))


class Counted:
    """Holds an epoch, and caches."""

    def __init__(self) -> None:
        self.epoch = 0
        self.size = 1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.size = 1 + epoch // 10

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size))

    @functools.cached_property
    def doubled(self) -> int:
        return self.size * 2

    @functools.lru_cache  # noqa: B019
    def tripled(self) -> int:
        return self.size * 3


def test_caches_do_not_count_and_what_they_are_made_of_does() -> None:
    thing = Counted()
    before, small = of(thing), small_state({"dataset": thing})
    assert (thing.doubled, thing.tripled()) == (2, 3)
    assert (of(thing), small_state({"dataset": thing})) == (before, small)
    thing.size = 2
    assert of(thing).digest != before.digest
    assert small_state({"dataset": thing}) != small


class ByEpoch:
    """A transform, or a data set of samples by index, that an epoch decides."""

    epoch = 0
    set_epoch = Counted.set_epoch


class Reseeded:
    """A sampler that seeds a generator with the epoch, deep in what it holds."""

    def __init__(self, generator: Any) -> None:
        self.held = {"draws": [generator]}

    def set_epoch(self, epoch: int) -> None:
        generator = self.held["draws"][0]
        if isinstance(generator, torch.Generator):
            generator.manual_seed(epoch)
        elif isinstance(generator, random.Random | np.random.RandomState):
            generator.seed(epoch)
        else:
            generator.bit_generator.state = np.random.PCG64(epoch).state

    def __iter__(self) -> Iterator[int]:
        return iter(())


@pytest.mark.parametrize(
    "make",
    [
        Counted,
        ByEpoch,
        lambda: Reseeded(random.Random()),
        lambda: Reseeded(np.random.RandomState()),
        lambda: Reseeded(np.random.default_rng()),
        lambda: Reseeded(torch.Generator()),
    ],
)
def test_what_is_told_of_an_epoch_counts(make: Any) -> None:
    told = []
    for epoch in (0, 3, 0):
        (thing := make()).set_epoch(epoch)
        states = [small_state({"sampler": thing}), small_state({"sampler": thing})]
        assert states[0] == states[1]
        told.append((of(thing).digest, states[0] if make is Counted else ""))
    assert told[0] == told[2] != told[1]


def test_a_small_state_sees_that_a_generator_was_told_an_epoch() -> None:
    for generator in (random.Random(), np.random.default_rng(), torch.Generator()):
        (thing := Reseeded(generator)).set_epoch(1)
        before = small_state({"sampler": thing})
        thing.set_epoch(2)
        assert small_state({"sampler": thing}) != before


class Shuffled:
    """Shuffles in place what it holds, of whichever kind, when it is told the epoch."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def set_epoch(self, epoch: int) -> None:
        if isinstance(self.held, torch.Generator):
            self.held.manual_seed(epoch)
        elif isinstance(self.held, set):
            self.held.remove(epoch)
        else:
            self.held[50_000] = -epoch


class Longer(list[int]):
    pass


@pytest.mark.parametrize(
    ("make", "shared"),
    [
        (torch.Generator, True),
        (torch.Generator, False),
        (lambda: list(range(100_001)), True),
        (lambda: dict.fromkeys(range(100_001)), False),
        (lambda: set(range(100_001)), True),
        (lambda: deque(range(100_001)), False),
        (lambda: Longer(range(100_001)), True),
        (lambda: np.zeros(9 << 20), False),
    ],
)
def test_a_small_state_sees_whatever_set_epoch_changes_in_place(make: Any, shared: bool) -> None:
    held = make()
    things = {"dataset": Thing(held=held) if shared else None, "sampler": (told := Shuffled(held))}
    told.set_epoch(1)
    before, name = small_state(things), fingerprint_of_objects(things)
    assert before == small_state(things)
    told.set_epoch(2)
    assert small_state(things) != before and fingerprint_of_objects(things) != name


def test_nothing_counts_of_what_is_left_out_of_a_small_state() -> None:
    thing = Thing(data=[1], more=2)
    before = small_state({"sampler": thing}, without=[thing.data])
    thing.data.append(3)
    assert small_state({"sampler": thing}, without=[thing.data]) == before
    thing.more = 3
    assert small_state({"sampler": thing}, without=[thing.data]) != before


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[10:20], lambda x: x[::2], lambda x: np.asarray(x)[5:]])
def test_a_mapped_array_counts_by_its_place_in_the_file_and_the_file_s_version(tmp_path: Path, view: Any) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(10_000))
    mapped = np.load(path, mmap_mode="r")
    before = of(view(mapped)).digest
    assert before == of(view(np.load(path, mmap_mode="r"))).digest
    assert before != of(view(mapped[1:])).digest
    os.utime(path, (1, 1))
    assert before != of(view(mapped)).digest


@pytest.mark.parametrize("gone", [True, False])
def test_an_array_whose_file_another_one_has_replaced_counts_by_its_items(tmp_path: Path, gone: bool) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(10_000))
    mapped = np.load(path, mmap_mode="r")
    assert place_in_file(mapped)
    if gone:
        path.unlink()
    else:
        np.save(tmp_path / "y.npy", np.ones(10_000))
        os.replace(tmp_path / "y.npy", path)
    assert place_in_file(mapped) is None
    assert of(mapped).digest == of(np.zeros(10_000).view(np.memmap)).digest


def test_a_private_change_of_a_mapped_array_counts(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(10_000))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="c")
    before = of(mapped).digest
    mapped[-1] = 1
    assert of(mapped).digest != before


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.complex64])
@pytest.mark.parametrize("count", [3, 1_100_000])
def test_one_item_of_a_tensor_counts_and_a_copy_does_not(kind: torch.dtype, count: int) -> None:
    tensor = torch.zeros(count).to(kind)
    before = of(tensor).digest
    assert before == of(tensor).digest == of(tensor.clone()).digest
    tensor[count // 2] = 1
    assert of(tensor).digest != before


def test_a_tensor_that_needs_gradients_or_is_a_subclass_is_another() -> None:
    made = [torch.ones(2), torch.ones(2, requires_grad=True), torch.nn.Parameter(torch.ones(2)), torch.ones(2, 1)]
    made += [torch.ones(2).to_sparse(), torch.ones(2).double(), torch.ones(()), torch.ones(4)[::2]]
    digests = [of(tensor).digest for tensor in made]
    assert len({*digests}) == len(made) - 1
    assert digests[0] == digests[-1]


@pytest.mark.parametrize("layout", [np.asfortranarray, lambda x: np.repeat(x, 2, axis=0)[::2]])
def test_where_the_items_of_a_large_array_lie_is_told_from_nothing_but_itself(layout: Any) -> None:
    array = np.arange(300_000.0).reshape(300, 1000)
    one, other = layout(array), layout(array)
    assert of(one).digest == of(other).digest
    other[299, 999] = 0
    assert of(one).digest != of(other).digest


@pytest.mark.parametrize(
    "change",
    [
        *("size = 4", "inner.size = 4", "steps.append(1)", "x[0] = 1", "t += 1", "t.data[0] = 1"),
        *("t.numpy()[-1] = 1", "big.numpy()[:] = 1", "f = sum"),
    ],
)
def test_the_small_state_tells_a_change_in_mid_training(change: str) -> None:
    steps: list[int] = []
    thing = Thing(size=3, inner=Thing(size=3), steps=steps, x=np.zeros(3), t=torch.zeros(10_000), f=max)
    thing.big = torch.zeros(17 << 20)  # more than is read of large ones
    before, name = small_state({"dataset": thing}), of(thing)
    assert before == small_state({"dataset": thing})
    exec(f"thing.{change}", {"thing": thing, "sum": sum})
    assert before != small_state({"dataset": thing})
    assert name != of(thing)


@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.zeros(9).share_memory_(),
        lambda: torch.zeros(9).share_memory_().numpy()[::2],
        lambda: np.frombuffer(mmap.mmap(-1, 72), np.int64),
        lambda: mmap.mmap(-1, 72),
        lambda: multiprocessing.Array("i", 9),
        lambda: np.memmap("x", np.int64, "w+", shape=(9,)),
    ],
)
def test_the_state_of_shared_memory_tells_its_changes_and_nothing_else(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    others = multiprocessing.Value("d")
    thing = Thing(size=3, own=torch.zeros(3), held=[Thing(stage=made())])
    before = shared_memory_state({"dataset": thing})
    thing.size, thing.more = 4, np.ones(3)
    thing.own += 1
    others.value = 1.0
    if os.path.exists("x"):
        os.utime("x")
    assert shared_memory_state({"dataset": thing}) == before != shared_memory_state({"dataset": Thing(size=3)})
    thing.held[0].stage[4] = 1
    assert shared_memory_state({"dataset": thing}) != before


def test_a_file_that_is_mapped_for_reading_and_a_private_map_are_no_shared_memory(tmp_path: Path) -> None:
    np.zeros(9).tofile(tmp_path / "x")
    thing = Thing(maps=[np.memmap(tmp_path / "x", np.float64, mode) for mode in ("r", "c")])
    assert shared_memory_state({"dataset": thing}) == shared_memory_state({"dataset": Thing()})


def test_labels_are_read_whole_after_whatever_many_images_and_the_many_by_samples() -> None:
    thing = Thing(images=[torch.zeros(2 << 20) for _ in range(20)], labels=np.zeros(10_000))
    before = small_state({"dataset": thing})
    thing.labels[5000] = 1
    changed = small_state({"dataset": thing})
    assert changed != before
    thing.images[19].numpy()[1:4] = 1
    assert small_state({"dataset": thing}) != changed


def test_the_small_state_tells_another_long_list_and_not_another_item_of_it() -> None:
    thing = Thing(many=list(range(100_001)))
    before = small_state({"dataset": thing})
    thing.many[0] = 5
    assert before == small_state({"dataset": thing})
    thing.many = list(range(1001))
    assert before != small_state({"dataset": thing})


def test_the_small_state_reads_what_cannot_go_to_another_process() -> None:
    assert small_state({"dataset": Thing(lock=threading.Lock())})


MODULE = """
import threading
SIZE = 3
LOCK = threading.Lock()
class Photos:
    def __getitem__(self, i):
        with LOCK:
            return helped(i) + SIZE
def helped(i):
    return i
def unused():
    return 1
"""


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "their_photos.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("their_photos")
    del sys.modules["their_photos"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("SIZE = 4", "SIZE is 3 there and 4 in yours"),
        ("helped.__code__ = (lambda i: i + 1).__code__", "the code of helped differs"),
        ("with open(__file__, 'a') as file:\n    file.write('# more')", "the module their_photos differs"),
    ],
)
def test_of_a_module_of_the_user_s_what_its_code_reads_and_its_file_count_and_its_lock_may_stay(
    photos: Any, change: str, told: str
) -> None:
    held = photos.Photos()
    before, small = of(held), small_state({"dataset": held})
    exec(change, vars(photos))
    assert fingerprint_difference(before, of(held)) == told
    assert (small_state({"dataset": held}) == small) == ("__file__" in change)


class Late:
    """Imports when it runs, and looks at the environment."""

    def imports(self) -> Any:
        import their_photos  # pyright: ignore

        return their_photos.SIZE

    def takes(self) -> Any:
        from their_photos import SIZE  # pyright: ignore

        return SIZE

    def looks(self) -> Any:
        return os.environ.get("THEIR_SIZE"), os.environ["THEIR_WIDTH"]


@pytest.mark.parametrize("method", ["imports", "takes"])
def test_what_code_imports_when_it_runs_counts(photos: Any, method: str) -> None:
    call = getattr(Late(), method)
    before = of(call)
    assert before.digest == of(call).digest
    photos.SIZE = 4
    assert "SIZE is 3 there and 4 in yours" in fingerprint_difference(before, of(call))


@pytest.mark.parametrize("variable", ["THEIR_SIZE", "THEIR_WIDTH"])
def test_what_code_reads_of_the_environment_counts(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    before = of(Late().looks)
    monkeypatch.setenv("ANOTHER_SIZE", "2")
    assert before.digest == of(Late().looks).digest
    monkeypatch.setenv(variable, "2")
    told = fingerprint_difference(before, of(Late().looks))
    assert told == f"yours uses environ['{variable}'], which the feed's does not"


def test_a_state_of_two_that_is_none_of_slots_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two(Thing):
        def __getstate__(self) -> Any:
            return 5, {"x": self.x}  # type: ignore[attr-defined]

    assert of(Two(x=1)).digest != of(Two(x=2)).digest


def test_of_an_installed_package_the_version_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = of(torch.nn.ReLU())
    assert before.parts["the version of torch"].shown == torch.__version__
    monkeypatch.setattr(torch, "__version__", "1.0")
    version_of.cache_clear()
    told = fingerprint_difference(before, of(torch.nn.ReLU()))
    monkeypatch.undo()
    version_of.cache_clear()
    assert told == f"the version of torch is {torch.__version__} there and 1.0 in yours"


def test_the_working_directory_counts_for_paths_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = of(Thing(root="data"))
    monkeypatch.chdir(tmp_path)
    assert fingerprint_difference(before, of(Thing(root="data"))).startswith("the working directory is ")


def test_files_that_are_named_are_told_and_decide_nothing(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("a")
    for held in (str(path), [(str(path), i) for i in range(100)]):
        assert [*of(Thing(held=held)).data.files] == [str(path)]


def test_much_is_told_in_few_parts_and_the_shallow_ones_by_name() -> None:
    def nested(depth: int, leaf: int) -> Thing:
        return Thing(leaf=leaf, **{f"a{i}": nested(depth - 1, leaf + i) for i in range(4 if depth else 0)})

    one, other = nested(4, 0), nested(4, 0)
    other.a1.a2.a0.leaf = "new"
    assert len(of(one).parts) < 64
    assert fingerprint_difference(of(one), of(other)) == "dataset.a1.a2 differs"


def test_code_that_calls_through_a_thousand_functions_is_read() -> None:
    lines = [f"def f{i}(x): return f{i + 1}(x)" for i in range(1000)]
    digests: list[str] = []
    for last in (1, 2):
        module: dict[str, Any] = {"__name__": "deep"}
        exec("\n".join([*lines, f"def f1000(x): return x + {last}"]), module)
        digests.append(of(module["f0"]).digest)
    assert digests[0] != digests[1]


SCRIPT = """
import functools, sys
import numpy as np
from pathlib import Path
from penstock.fingerprint.objects import fingerprint_of_objects
SCALE = float(sys.argv[1])
FILL = [object() for _ in range(int(sys.argv[2]))]
NAMES = set()
for i in range(*((0, 100) if len(FILL) % 2 else (99, -1, -1))):
    NAMES.add(f"n{i}")

class Photos:
    def __init__(self):
        self.names = {(name, i) for i, name in enumerate(sorted(NAMES))}
        self.again = self
        self.transform = functools.partial(scaled, by=(1, 2))
        self.f = lambda x: x + SCALE
        self.x = np.arange(5)[::2]
        self.here = Path("x")
        self.all = [{"a": {f"{i}", "b"}} for i in range(200)]

def scaled(x, by):
    return x * SCALE in {"x", "y", "z"}, NAMES

print(fingerprint_of_objects({"dataset": Photos(), "collate_fn": scaled}).digest)
"""


def test_a_script_has_one_name_in_every_process_and_another_once_a_global_differs(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)

    def named(scale: str, seed: int) -> str:
        env = {**os.environ, "PYTHONHASHSEED": str(seed)}
        return run_python(tmp_path / "script.py", scale, str(seed), env=env).stdout

    assert len({named("1", seed) for seed in range(2)} - {""}) == 1
    assert named("1", 0) != named("2", 0) != ""


SENT = """
import functools, sys
import numpy as np
from penstock.feed.launch.spec import FeederSpec, pickle_spec
from penstock.feed.settings import Settings
from penstock.fingerprint.comparison import Fingerprint
from penstock.fingerprint.objects import fingerprint_of_objects
SCALE = 3
class Photos:
    def __init__(self):
        self.x = np.load(sys.argv[1], mmap_mode="r")[5:50:3]
        self.f = lambda x: x * SCALE
    @functools.cached_property
    def doubled(self):
        return SCALE * 2
photos = Photos()
print(fingerprint_of_objects({"dataset": photos}).digest)
with open(sys.argv[2], "wb") as file:
    spec = FeederSpec(functools.partial(print, photos), "a", Settings(), Fingerprint("3 a"), sys.argv)
    file.write(pickle_spec(spec))
"""
RECEIVED = """
import sys
from penstock.feed.launch.spec import read_spec
from penstock.fingerprint.objects import fingerprint_of_objects
photos = read_spec(open(sys.argv[1], "rb")).make_loader.args[0]
assert photos.doubled == 6 and list(photos.x) == list(range(5, 50, 3))
print(fingerprint_of_objects({"dataset": photos}).digest)
"""


def test_what_a_script_sends_to_a_feeder_has_its_name_there_and_a_mapped_array_stays_one(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(1_000_000))
    (tmp_path / "script.py").write_text(SENT)
    sent = run_python("script.py", "x.npy", "spec", cwd=tmp_path)
    received = run_python("-W", "ignore", "-c", RECEIVED, "spec", cwd=tmp_path)
    assert sent.stdout == received.stdout != "", sent.stderr + received.stderr
    assert (tmp_path / "spec").stat().st_size < 20_000
