"""An edited ``make_loader`` is told from the one that feeds; what does not matter is not."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.scripts import run_python

import penstock
from penstock.fingerprint.comparison import Fingerprint, fingerprint_difference, same_fingerprint
from penstock.fingerprint.functions import fingerprint_of

BEFORE = """
import functools, numpy as np
from pathlib import Path
SIZE = 100
RATE = 0.1
FOLDER = Path("/data/a")
NAMES = {"a", "b", "c"}

class Photos:
    '''Some photos.'''
    crop = 224
    def __init__(self, folder):
        self.folder = folder
    def __getitem__(self, i):
        return load(i, self.crop)

def load(i, crop):
    return i * 2 if i in {"x", "y", "z"} else crop  # a comment

def make(workers=2):
    return [Photos(FOLDER), SIZE, NAMES, np.arange(3), [i + 1 for i in range(3)]]

def train():
    return RATE
"""


def fingerprint(source: str, expression: str = "make") -> Fingerprint:
    module: dict[str, Any] = {"__name__": "script"}
    exec(compile(source, "script.py", "exec"), module)
    return fingerprint_of(eval(expression, module))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("SIZE = 100", "SIZE = 101", "SIZE is 100 there and 101 in yours"),
        ("/data/a", "/data/b", "FOLDER is PosixPath('/data/a') there and PosixPath('/data/b') in yours"),
        ('"a", "b", "c"', '"a", "b", "d"', "NAMES is {'a', 'b', 'c'} there and {'a', 'b', 'd'} in yours"),
        ("workers=2", "workers=4", "make(workers=) is 2 there and 4 in yours"),
        ("crop = 224", "crop = 192", "Photos.crop is 224 there and 192 in yours"),
        ("i * 2", "i * 3", "the code of load differs"),
        ('"x", "y", "z"', '"x", "y", "w"', "the code of load differs"),
        ("[i + 1 for", "[i + 2 for", "the code of make differs"),
        ("self.folder = folder", "self.directory = folder", "the code of Photos.__init__ differs"),
        ("SIZE = 100", f"SIZE = [{'1, ' * 5000} 3]", "SIZE is 100 there and list of 5,001 in yours"),
        ("np.arange(3)", "load(3, RATE)", "the code of make differs; yours uses RATE, which the feed's does not"),
    ],
)
def test_an_edit_of_what_makes_the_loader_is_told(old: str, new: str, told: str) -> None:
    assert old in BEFORE
    one, other = fingerprint(BEFORE), fingerprint(BEFORE.replace(old, new))
    assert not same_fingerprint(one, other)
    assert fingerprint_difference(one, other) == told


def test_what_another_function_uses_is_told_by_classes_and_functions() -> None:
    other = fingerprint(BEFORE, "train")
    assert fingerprint_difference(fingerprint(BEFORE), other) == (
        "the feed's uses make, Photos, load and 3 more, which yours does not; yours uses train, RATE"
    )


def test_values_that_read_the_same_when_shortened_are_told_without_them() -> None:
    one, other = (BEFORE.replace("100", f"'{'/data' * 50}/{i}/{'x' * 100}'") for i in "ab")
    assert fingerprint_difference(fingerprint(one), fingerprint(other)) == "SIZE differs"


def test_a_function_of_very_many_parts_travels_in_a_small_message() -> None:
    lines = [f"N{i} = {'é' * 500!r}" for i in range(500)]
    code = "\n".join([*lines, "def make():", f"    return {', '.join(f'N{i}' for i in range(500))}"])
    one, other = fingerprint(code), fingerprint(code.replace("N499 = 'é", "N499 = 'è"))
    assert len(msgspec.msgpack.encode(one)) < 20_000
    assert not same_fingerprint(one, other)
    assert fingerprint_difference(one, other) == "its code, or a value that it uses, differs"


def test_every_part_counts_in_a_file_however_its_name_reads() -> None:
    long = "a" * 90
    code = f"Python, {long}_1, {long}_2 = 'parrot', 1, 2\ndef make():\n    return Python, {long}_1, {long}_2\n"
    for edited in ("'parrot', 3, 2", "'parrot', 1, 3", "'ape', 1, 2"):
        assert fingerprint(code).digests != fingerprint(code.replace("'parrot', 1, 2", edited)).digests
    assert fingerprint(code).digests["the version of Python"] == "{}.{}".format(*sys.version_info)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("RATE = 0.1", "RATE = 0.2"),
        ("  # a comment", "  # another"),
        ("SIZE = 100", "\n\nSIZE = 100"),
        ("return RATE", "return RATE * 2"),
        ("Some photos.", "Many photos."),
        ('{"a", "b", "c"}', '{"c", "b", "a"}'),
    ],
)
def test_an_edit_of_anything_else_is_not(old: str, new: str) -> None:
    assert old in BEFORE
    assert same_fingerprint(fingerprint(BEFORE), fingerprint(BEFORE.replace(old, new)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("functools.partial(make, 1)", "functools.partial(make, 2)"),
        ("functools.partial(make, workers=1)", "functools.partial(make, workers=2)"),
        ("lambda: make(1)", "lambda: make(2)"),
        ("(lambda n: lambda: make(n))(1)", "(lambda n: lambda: make(n))(2)"),
        ("Photos('a').__getitem__", "make"),
    ],
)
def test_lambdas_and_partials_are_told_apart_by_what_they_hold(one: str, other: str) -> None:
    assert fingerprint(BEFORE, one) == fingerprint(BEFORE, one)
    assert not same_fingerprint(fingerprint(BEFORE, one), fingerprint(BEFORE, other))


SEARCH = """
seed, batch_size = {seed}, {batch_size}
class Photos:
    def __init__(self):
        self.seed = 0
    def __len__(self):
        return self.batch_size
def make():
    from json import loads as batch_size
    return Photos().seed
"""


def test_an_attribute_is_not_a_global_of_the_same_name() -> None:
    """Runs of one search differ in what the loader does not use."""
    assert fingerprint(SEARCH.format(seed=1, batch_size=2)) == fingerprint(SEARCH.format(seed=3, batch_size=4))


WRAPPED = """
import functools
class Base:
    def size(self): return 1
class Photos(Base):
    @staticmethod
    def crop(): return 2
    @classmethod
    def make(cls): return 3
    @property
    def side(self): return 4
@functools.lru_cache
def names(): return 5
def make(): return Photos(), names()
"""


READS = """
from types import SimpleNamespace
args = SimpleNamespace(data="/a", lr=0.1, model=SimpleNamespace(depth=2))
def make():
    return args.data, args.model.depth
def bound(a):
    return lambda: a.data
"""


@pytest.mark.parametrize(
    ("expression", "old", "new", "same"),
    [
        ("make", "/a", "/b", False),
        ("make", "depth=2", "depth=3", False),
        ("make", "lr=0.1", "lr=0.2", True),
        ("bound(args)", "/a", "/b", False),
        ("bound(args)", "lr=0.1", "lr=0.2", True),
    ],
)
def test_of_an_object_the_attributes_that_are_read_count(expression: str, old: str, new: str, same: bool) -> None:
    one, other = (fingerprint(text, expression) for text in (READS, READS.replace(old, new)))
    assert same_fingerprint(one, other) == same


@pytest.mark.parametrize("number", "12345")
def test_wrapped_functions_and_base_classes_count(number: str) -> None:
    assert fingerprint(WRAPPED) != fingerprint(WRAPPED.replace(f"return {number}", "return 9"))


def test_containers_that_hold_themselves_and_long_ones_end() -> None:
    loop = "LOOP = []\nLOOP.append(LOOP)\nTABLE = {}\nTABLE['me'] = TABLE\n"
    assert fingerprint(loop + "def make():\n    return LOOP, TABLE\n")
    long = "FILES = ['x'] * %d\ndef make():\n    return FILES\n"
    assert fingerprint(long % 100_000) != fingerprint(long % 100_001)


def test_functions_that_call_each_other_end() -> None:
    assert fingerprint("def make():\n    return other()\ndef other():\n    return make()\n")


def test_recipes_of_two_pythons_are_not_compared() -> None:
    assert same_fingerprint(Fingerprint("3.11 aaaa"), Fingerprint("3.12 bbbb"))
    assert not same_fingerprint(Fingerprint("3.11 aaaa"), Fingerprint("3.11 bbbb"))


def make_of(rows: int) -> penstock.ArraySource:
    return penstock.ArraySource({"id": np.arange(rows)}, batch_size=10, segments=5)


@pytest.mark.usefixtures("forks_feeders")
def test_a_later_caller_with_another_data_set_is_refused_and_told_how_to_go_on() -> None:
    with penstock.share(functools.partial(make_of, 100), "my feed", linger=0.2) as one:
        with penstock.share(functools.partial(make_of, 100), "my feed") as other:
            assert len(one) == len(other) == 10
        told = r"argument 1 of make_of is 100 there and 200 in.*stop 'my feed'"
        with pytest.raises(penstock.errors.SettingsDiffer, match=told):
            penstock.share(functools.partial(make_of, 200), "my feed")
        assert len(next(iter(one))["id"]) == 10, "the feed goes on"


@pytest.mark.usefixtures("forks_feeders")
def test_a_feed_that_was_not_started_by_share_is_taken_as_it_is(serve: Any) -> None:
    serve(make_of(100), "by hand")
    with penstock.share(functools.partial(make_of, 200), "by hand") as loader:
        assert len(loader) == 10


MAKERS = """
from functools import partial
CROP = 224
class Loaders:
    scale = 1
    def __init__(self, folder, lr):
        self.folder, self.lr = folder, lr
        self.train = {"lr": lr}
    def make(self):
        return self.read(lambda: self.folder), self.length
    def read(self, of):
        return of(), self.scale
    @property
    def length(self):
        return CROP
    def __call__(self):
        return self.make()
    def fit(self):
        return self.lr
loaders = Loaders("/a", 0.1)
def make():
    return loaders.make()
"""


MAKING = ["loaders.make", "loaders", "partial(loaders.make)", "lambda: loaders()", "make"]


@pytest.mark.parametrize("maker", MAKING)
@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ('"/a"', '"/b"', False),
        ("scale = 1", "scale = 2", False),
        ("CROP = 224", "CROP = 192", False),
        ("of(), self.scale", "self.scale, of()", False),
        ("return CROP", "return CROP + 1", False),
        ('"/a", 0.1', '"/a", 0.2', True),
        ("return self.lr", "return -self.lr", True),
    ],
)
def test_of_an_object_whose_method_is_called_what_the_method_reads_counts(maker, old, new, same):
    assert old in MAKERS
    assert same_fingerprint(fingerprint(MAKERS, maker), fingerprint(MAKERS.replace(old, new), maker)) == same


def test_of_a_method_what_differs_is_told() -> None:
    one, other = (fingerprint(MAKERS.replace("/a", folder), "loaders.make") for folder in ("/a", "/b"))
    assert fingerprint_difference(one, other) == "self.folder is '/a' there and '/b' in yours"


SCRIPT = """
import functools, multiprocessing, sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple
from penstock.fingerprint.functions import fingerprint_of

class Batch(NamedTuple):
    id: int

@dataclass
class Sample:
    id: int = 3

class Kind(Enum):
    A = 1

@functools.cache
def names():
    return __name__, Path(__file__).parent

class Maker:
    def __init__(self, n):
        self.n = n
    def make(self):
        return make(self.n)
    def __call__(self):
        return self.make()

def make(n=1):
    return Batch(n), Sample(), Kind.A, names()

def show():
    for maker in (make, lambda: make(2), functools.partial(make, 3), Maker(4).make, Maker(5)):
        print(fingerprint_of(maker).digest, flush=True)

if __name__ == "__main__":
    show()
    for method in ("spawn", "forkserver", "fork"):
        process = multiprocessing.get_context(method).Process(target=show)
        process.start()
        process.join()
"""


@pytest.mark.parametrize("command", [["./there/../script.py"], ["-m", "script"]])
def test_a_scripts_functions_count_the_same_in_processes_that_it_spawns(tmp_path: Path, command: list[str]):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "there").mkdir()
    fingerprints = run_python(*command, cwd=tmp_path).stdout.splitlines()
    assert len(fingerprints) == 20
    assert len(set(fingerprints[:5])) == 5
    assert fingerprints == fingerprints[:5] * 4
