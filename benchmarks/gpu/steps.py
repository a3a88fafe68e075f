"""What runs on a machine with a GPU, part by part: commands, their requirements and time limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

PART_S = 450.0
"""Time limit of a part, so that it ends within 8 minutes with its record and its children's end."""


class Step(NamedTuple):
    """One command of a part."""

    name: str  # name within its part
    command: tuple[str, ...]  # arguments of this Python
    modules: tuple[str, ...] = ()  # modules that must be installed
    limit_s: float = PART_S  # time after which it is killed, if its part has that long
    result: str = ""  # JSON file that it writes, which goes into the record
    under: tuple[str, ...] = ()  # a tool and its options, under which this Python runs
    unavailable: int | None = None  # exit status that says that this machine lacks what it measures


_PYTEST = (
    *("-m", "pytest", "-q", "-rfEs", "-p", "no:benchmark", "-p", "no:cacheprovider", "--timeout", "60"),
    *("-W", "ignore:This.process:DeprecationWarning"),  # of Python 3.12, where a process with threads forks
)
_TESTS = ("msgspec", "numpy", "psutil", "pytest", "pytest_timeout", "cuda.bindings")
_MEMCHECK = (
    *("compute-sanitizer", "--tool", "memcheck", "--target-processes", "all", "--error-exitcode", "86"),
    *("--report-api-errors", "no"),  # newer bindings ask an older driver for functions that it lacks
)
_IMAGES = ("simplejpeg", "cv2")


def _tested(name: str, file: str, chosen: str, limit_s: float = PART_S, under: tuple[str, ...] = ()) -> Step:
    slower = ("--timeout", "300") if under or "commands" in file else ()
    return Step(name, (*_PYTEST, *slower, f"tests/gpu/{file}", "-k", chosen), _TESTS, limit_s, under=under)


def _right(_: Path) -> list[Step]:
    """Make steps for what feeds on a GPU rest on, side by side, as time on a GPU is short."""
    files = tuple(f"tests/gpu/{name}.py" for name in ("test_gpu", "test_readers", "test_nvml"))
    gpu = (*_PYTEST, "-n", "6", "--dist", "worksteal", *files, "-k", "not Gds")
    return [Step("gpu", gpu, (*_TESTS, "xdist"), 70), _tested("mps-runs", "test_mps.py", "", 30)]


def _why(out: Path) -> list[Step]:
    def measured(name: str, limit_s: float, *options: str) -> Step:
        file = f"{name}.result.json"
        return Step(
            name, ("-m", f"benchmarks.gpu.{name}", str(out / file), *options), ("cuda.bindings",), limit_s, file
        )

    return [measured("why", 95, "cuda:0", "2", "10MB", "64KB"), measured("copies", 30, "cuda:0")]


def _mps(out: Path) -> list[Step]:
    file = "mps.result.json"
    command = ("-m", "benchmarks.gpu.mps", str(out / file), "cuda:0")
    return [Step("mps", command, ("cuda.bindings",), 60, file)]


def _facts(out: Path) -> list[Step]:
    file = "facts.result.json"
    return [Step("facts", ("-m", "benchmarks.gpu.facts", str(out / file)), ("cuda.bindings",), 120, file)]


def _tests(_: Path) -> list[Step]:
    return [
        _tested("contract", "test_gpu.py", "OnAGpu", 180),
        _tested("feeds", "test_gpu.py", "not OnAGpu", 360),
        _tested("readers", "test_readers.py", "not Gds", 180),
        _tested("gpu-reads", "test_gpu_reads.py", "", 200),
        _tested("nvml", "test_nvml.py", "", 120),
        _tested("mps", "test_mps.py", "", 180),
        _tested("frameworks", "test_frameworks.py", "", 180),
        _tested("commands", "test_commands.py", "", 240),
        _tested("gds", "test_readers.py", "Gds", 180),  # last: an error there can end the process
    ]


def _sanitizer(_: Path) -> list[Step]:
    """Make steps without feeders that detach themselves, which the tool ends."""
    return [
        _tested("views", "test_gpu.py", "views", under=_MEMCHECK),
        _tested("contract", "test_gpu.py", "OnAGpu", under=_MEMCHECK),
        _tested("gpu-reads", "test_gpu_reads.py", "", under=_MEMCHECK),
        _tested("feeds", "test_gpu.py", "not (OnAGpu or views or replaced or examples)", under=_MEMCHECK),
    ]


def _share(out: Path) -> list[Step]:
    def measured(name: str, limit_s: float, *options: str, modules: tuple[str, ...] = ()) -> Step:
        file = f"share-{name}.result.json"
        command = ("-m", "benchmarks", "gpu", *options, "--json", str(out / file))
        return Step(name, command, ("typer", "rich", "cuda.bindings", *modules), limit_s, file)

    rings = "separate,host ring,GPU ring"
    arms, peer, two = (("--arms", a) for a in (rings, f"{rings},tensorsocket:4", "separate,GPU ring"))
    once = ("--repeats", "1")
    train = ("--blocks", "", "--only", "train", "--mps", "--seconds", "8", "--window", "256MiB")
    again = ("--repeats", "2", "--again", two[1])
    return [
        measured("blocks", 300, *arms, "--blocks", "10MB", "--no-jpeg", "--trainers", "1,4", "--repeats", "3"),
        measured("train-4", 175, *peer, *train, "--cores", "4", "--trainers", "1,4", *again, modules=_IMAGES),
        measured("train-16", 60, *two, *train, "--cores", "16", "--trainers", "4", *once, modules=_IMAGES),
    ]


def _io(out: Path) -> list[Step]:
    def measured(name: str, *options: str) -> Step:
        file = f"io-{name}.result.json"
        path = ("-m", "penstock", "bench", "io", str(out), "--size", "1GiB", "--runtime", "1", "--qd", "128")
        command = (*path, "--bs", "4KiB,1MiB", *options, "--json", str(out / file))
        return Step(name, command, ("typer", "rich"), 200, file, unavailable=2)

    return [
        measured("by-the-host", "--mech", "direct,uring", "--dest", "pinned,cuda:0"),
        measured("gpu", "--mech", "gpu", "--threads", "128", "--dest", "pinned,cuda:0"),
        measured("gds", "--mech", "gds", "--dest", "cuda:0"),
    ]


def _demo(out: Path) -> list[Step]:
    file = "demo.result.json"
    demo = ("-m", "penstock", "demo", "--trainers", "4", "--epochs", "3", "--report", str(out / file))
    return [
        Step("train", ("examples/train.py", "--epochs", "2"), (), 120),
        Step("language-model", ("examples/language_model.py",), (), 120),
        Step("demo", demo, ("typer", "rich", "matplotlib", *_IMAGES), 300, file),
        Step("doctor", ("-m", "penstock", "doctor"), ("typer", "rich"), 60),
    ]


def _select(out: Path) -> list[Step]:
    file = "select.result.json"
    measured = ("-m", "benchmarks", "gradients", "--device", "cuda:0", "--json", str(out / file))
    return [Step("gradients", measured, ("msgspec", "psutil", "rich", "typer"), 120, file)]


def _decode(out: Path) -> list[Step]:
    """Make steps that end within five minutes, the start of the part included."""

    def measured(name: str, limit_s: float, *modules: str) -> Step:
        library, _, backend = name.partition("-")
        only = ("--only", backend) if backend else ()
        command = ("-m", "benchmarks.gpu.decode", library, str(out), *only)
        file = f"decode-{name}.result.json"
        return Step(name, command, ("psutil", *_IMAGES, *modules), limit_s, file, unavailable=2)

    return [
        measured("cpu", 30),
        measured("nvimagecodec", 140, "cupy"),
        measured("nvimagecodec-engines", 50, "cupy"),  # if the one before died of another backend
        measured("torchvision", 75, "torchvision", "cupy"),
    ]


def _split(out: Path) -> list[Step]:
    file = "split.result.json"
    command = ("-m", "benchmarks.gpu.split", str(out / file))
    needed = ("psutil", *_IMAGES, "torchvision", "cuda.bindings")
    return [
        _tested("pixels", "test_decode.py", "", 90),
        Step("split", command, needed, 240, file),
    ]


PARTS: dict[str, Callable[[Path], list[Step]]] = {
    "facts": _facts,
    "right": _right,
    "why": _why,
    "mps": _mps,
    "tests": _tests,
    "sanitizer": _sanitizer,
    "share": _share,
    "io": _io,
    "demo": _demo,
    "select": _select,
    "decode": _decode,
    "split": _split,
}
