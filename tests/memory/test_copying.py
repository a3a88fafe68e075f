"""Copies by several threads are those of one, also when they are broken off."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from penstock.memory.copying import LEAST_BYTES, Copier
from penstock.memory.host_ring import WritableHostRing

AROUND = 64


@settings(max_examples=examples(60), deadline=None)
@given(
    threads=st.integers(1, 4),
    nbytes=st.integers(0, 5 << 20) | st.sampled_from([LEAST_BYTES + by for by in (-1, 0, 1)]),
    seed=st.integers(0, 1 << 30),
)
def test_all_bytes_are_copied_and_no_others(threads: int, nbytes: int, seed: int) -> None:
    origin = np.random.default_rng(seed).integers(0, 256, nbytes, "u1")
    memory = np.full(nbytes + 2 * AROUND, 7, "u1")
    with closing(Copier(threads)) as copier:
        copier.copy(memory[AROUND : AROUND + nbytes], origin)
    assert np.array_equal(memory[AROUND : AROUND + nbytes], origin)
    assert (memory[:AROUND] == 7).all() and (memory[AROUND + nbytes :] == 7).all()


class Interrupted(Exception):
    pass


def test_nobody_writes_any_more_once_an_interrupted_copy_has_raised() -> None:
    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    origin, to = np.full(64 << 20, 1, "u1"), np.zeros(64 << 20, "u1")
    before = signal.signal(signal.SIGALRM, interrupt)
    broken_off = 0
    try:
        with closing(Copier(4)) as copier:
            copier.copy(to, origin)  # starts its threads
            for turn in range(30):
                to[:] = 0
                try:
                    signal.setitimer(signal.ITIMER_REAL, 1e-4 + turn * 1e-3)
                    copier.copy(to, origin)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Interrupted:
                    broken_off += 1
                    seen = to.copy()
                    time.sleep(0.002)
                    assert np.array_equal(to, seen)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert broken_off


def test_a_ring_that_is_closed_has_no_threads_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.memory.copying.cores", lambda: 8.0)
    ring = WritableHostRing.create(4 << 20)
    origin = np.random.default_rng(0).integers(0, 256, 4 << 20, "u1")
    ring.write(0, origin)
    assert np.array_equal(ring.readable(0, 4 << 20), origin)
    assert [thread for thread in threading.enumerate() if thread.name.startswith("penstock-copy")]
    ring.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("penstock-copy")]
