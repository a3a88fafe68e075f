"""GPUDirect Storage where there is none: every way in which the probe can end."""

from __future__ import annotations

import sys

import pytest
import torch

from penstock.errors import BadSetting, ReaderUnavailable
from penstock.io.gds import probe
from penstock.io.open import open_reader
from penstock.testing.reader import new_memory


def child(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_child_that_answers_tells_the_version() -> None:
    assert probe(child("print('cuFile 1.15')")) == "cuFile 1.15"


def test_a_child_that_spins_is_killed_and_said_to_hang() -> None:
    with pytest.raises(ReaderUnavailable, match=r"did not open within 0.3 s.*mech='direct'"):
        probe(child("while True: pass"), limit_s=0.3)


def test_a_child_that_ignores_signals_is_killed_too() -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
    with pytest.raises(ReaderUnavailable, match="did not open"):
        probe(child(code), limit_s=0.5)


def test_a_child_that_crashes_is_named_with_its_signal() -> None:
    with pytest.raises(ReaderUnavailable, match="died of SIGSEGV"):
        probe(child("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"))


@pytest.mark.parametrize(
    ("says", "remedy"),
    [
        ("ModuleNotFoundError: No module named 'cuda'", r'pip install "penstock\[gpu\]"'),
        ("ImportError: cannot import name 'cufile' from 'cuda.bindings'", "cuda-bindings 13"),
        ('DynamicLibNotFoundError: Failure finding "libcufile.so.0"', "install NVIDIA's libcufile"),
        ("cuFileError: DRIVER_NOT_INITIALIZED (5001): nvidia-fs driver is not loaded", "mech='direct'"),
    ],
)
def test_what_the_child_says_is_told_with_a_remedy(says: str, remedy: str) -> None:
    with pytest.raises(ReaderUnavailable, match=remedy) as caught:
        probe(child(f"import sys; print('noise', file=sys.stderr); sys.exit({says!r})"))
    assert says in str(caught.value)
    assert "noise" not in str(caught.value)


def test_a_child_that_cannot_be_started_is_told() -> None:
    with pytest.raises(ReaderUnavailable, match=r"cannot be tried.*No such file"):
        probe(["/nonexistent/python"])


def test_a_child_that_ends_without_a_word_is_told() -> None:
    with pytest.raises(ReaderUnavailable, match="cuFile ended with status 3 where"):
        probe(child("raise SystemExit(3)"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="it may work here")
def test_the_real_child_says_why_there_is_none() -> None:
    with pytest.raises(ReaderUnavailable, match=r"^gds: .*; (install|pip install|read)"):
        probe(limit_s=10.0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="it may work here")
def test_without_a_gpu_it_is_unavailable_and_the_reason_is_given() -> None:
    with pytest.raises(ReaderUnavailable, match=r"^gds: .*mech='direct'"):
        open_reader("gds", torch.zeros(4096, dtype=torch.uint8))


def test_memory_of_the_host_is_refused() -> None:
    with pytest.raises(BadSetting, match="reads into a GPU's memory"):
        open_reader("gds", new_memory())
