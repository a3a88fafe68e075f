"""Fixtures for every test: feeds live in a directory of the test's own, and nothing may be left behind.

Tests of several files run at once. /dev/shm belongs to them all, so it is looked at when the last has ended.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings
from tests.fakes.nvml.fake_gpus import FOLDER, FakeGpus
from tests.forked import ForkServer, command_line

import penstock
from penstock.feed.feeder import blocks
from penstock.gpus.nvml import nvml
from penstock.runs.store import Store

VERBS = [f"penstock.cli.{path.stem}" for path in Path(penstock.__file__).with_name("cli").glob("*.py")]


@pytest.fixture
def stays(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set for how many seconds a beginning stays in the window; not at all, unless a test says more."""

    def set_to(seconds: float) -> None:
        monkeypatch.setattr(blocks, "_STAYS_NS", int(seconds * 1e9))

    set_to(0)
    return set_to


settings.register_profile("default", deadline=None)
settings.register_profile("soak", deadline=None, max_examples=2000)

APART = {"formats", "frameworks", "mlflow"}
"""Rooms whose tests need an environment of their own; each is a mark."""
SHM_BEFORE, LEFT = pytest.StashKey[set[str]](), pytest.StashKey[list[str]]()


def pytest_sessionstart(session: pytest.Session) -> None:
    # Whoever starts the tests in the background may ignore these, and every process of theirs would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    session.config.stash[SHM_BEFORE] = set(os.listdir("/dev/shm"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name in APART:
            item.add_marker(item.path.parent.name)
            item.add_marker(pytest.mark.timeout(300))  # servers take long to start, as do Pythons that import much


def pytest_collection_finish() -> None:
    gc.freeze()  # torch and the tests themselves are no garbage, and take 0.2 s to look through each time


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if a process of a test's is left, or a file in /dev/shm; the names of torch's tell whose."""
    if hasattr(session.config, "workerinput"):  # one of several processes that test
        return
    base = session.config._tmp_path_factory.getbasetemp()  # pyright: ignore
    deadline = time.monotonic() + 15  # the last test's processes may be about to end, a torch worker's file to go
    while time.monotonic() < deadline:
        processes = _serving(base)
        left = set(os.listdir("/dev/shm")) - session.config.stash[SHM_BEFORE]
        if not processes and not left:
            return
        time.sleep(0.05)
    for process in processes:  # whoever waits for the end of their output would wait for ever
        process.kill()
    session.config.stash[LEFT] = [*map(str, processes), *(f"/dev/shm/{name}" for name in sorted(left))]
    session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Generator[None]:
    yield  # last of all: whoever sees the end only should see why no test has failed, and the run has
    if left := config.stash.get(LEFT, []):
        terminalreporter.section("left behind", red=True)
        terminalreporter.line("\n".join(left))


@pytest.fixture(scope="session")
def feeds_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Private directories, one after another; pytest would look through all that there are to find a number."""
    every = tmp_path_factory.mktemp("feeds")
    return (every / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def feeds_directory(feeds_directories: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A private directory for the test's feeds; afterwards no file, child or descriptor of ours is left."""
    path = next(feeds_directories)
    path.mkdir(mode=0o700)
    made_ns = path.stat().st_mtime_ns
    monkeypatch.setenv("PENSTOCK_DIR", str(path))
    yield path
    if path.stat().st_mtime_ns == made_ns:  # no feed has lived there, nor begun to
        return
    deadline = time.monotonic() + 15
    while ((alive := _serving(path)) or _left_in(path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in alive:
        process.kill()
    assert not alive, f"feeder processes left behind: {alive}"
    assert not _left_in(path)  # nor of one that was forked, whose environment tells nothing


def _left_in(path: Path) -> list[Path]:
    penstock.feeds()  # removes what killed feeders left
    return list(path.iterdir())


@pytest.fixture(autouse=True, scope="module")
def freeze() -> None:
    """What earlier tests have imported and kept is no garbage: whoever looks for that need not look there."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """No thread of ours outlives the test that it was started in."""
    before = set(threading.enumerate())
    yield
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not [name for name in left if name.startswith("penstock-")], "threads left behind"


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What Penstock keeps for this user (benchmarks, compiled code) is none of the tests' business."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ForkServer]]:
    """Processes that fork others: with numpy, with torch too, and with the command line."""
    numpy = ["penstock.feed.launch.process", "penstock.feed.launch.shared", "pytest", "sources"]
    # and what they import once they run
    command = [*VERBS, "typer._adapters", "penstock.runs.launch.launcher", "penstock.runs.spec.open"]
    modules = {"numpy": numpy, "torch": [*numpy, "torch.utils.data"], "command": command}
    faults = Path(__file__).parent / "faults"
    servers = {name: ForkServer(tmp_path_factory.mktemp("ended"), modules[name], faults) for name in modules}
    yield servers
    for server in servers.values():
        server.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def forks_feeders(servers: dict[str, ForkServer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have feeders that this process starts forked."""
    monkeypatch.setattr(sys, "executable", servers["numpy"].python)


@pytest.fixture
def forks_feeders_with_torch(servers: dict[str, ForkServer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have feeders that this process starts forked, from a process that has imported torch."""
    monkeypatch.setattr(sys, "executable", servers["torch"].python)


@pytest.fixture
def command(servers: dict[str, ForkServer], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Run the command line to its end, 200 columns wide."""

    def run(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "COLUMNS": "200"}
        return command_line(servers["command"], tmp_path_factory.mktemp("command"), words, environment, cwd)

    return run


def _serving(path: Path) -> list[psutil.Process]:
    """The processes whose feeds live there, or below it."""
    found: list[psutil.Process] = []
    within = b"\0PENSTOCK_DIR=" + os.fsencode(path)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        # One that has ended, and that init has yet to reap, tells no environment.
        with suppress(OSError, psutil.Error), open(f"/proc/{pid}/environ", "rb") as file:
            environment = b"\0" + file.read()
            if int(pid) != os.getpid() and (within + b"\0" in environment or within + b"/" in environment):
                found.append(psutil.Process(int(pid)))
    return found


@pytest.fixture
def serve() -> Iterator[Callable[..., penstock.Feeder]]:
    """Start a Feeder whose ``run()`` goes on in a thread, until the test ends."""
    with ExitStack() as stack:

        def start(loader: Any, name: str = "feed", **settings: Any) -> penstock.Feeder:
            feeder = penstock.Feeder(loader, name, **settings)

            def run() -> None:
                with suppress(penstock.errors.SourceError):
                    feeder.run()

            thread = threading.Thread(target=run)
            thread.start()
            stack.callback(thread.join)
            stack.callback(feeder.close)
            return feeder

        yield start


@pytest.fixture
def fake_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpus]:
    """A machine whose GPUs the test makes, for this process; others need its ``environment``."""
    machine = FakeGpus(tmp_path / "gpus")
    monkeypatch.setenv(FOLDER, machine.environment[FOLDER])
    monkeypatch.syspath_prepend(Path(__file__).parent / "fakes" / "nvml")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    nvml.cache_clear()
    yield machine
    nvml.cache_clear()
    sys.modules.pop("pynvml", None)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a local S3 server, to which the environment points."""
    from tests.object_store import serving

    with serving(tmp_path_factory.mktemp("s3") / "errors") as url:
        yield url


@pytest.fixture
def no_gc_callbacks() -> Iterator[None]:
    """No callbacks when garbage is collected: Python loses the alarm that comes in one, such as hypothesis'.

    Nor those of earlier tests' garbage: each thread that has ended has one, in ``threading``.
    """
    gc.collect()
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = callbacks
