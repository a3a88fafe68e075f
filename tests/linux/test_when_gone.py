"""What is done at an object's end is done whole, and what a signal's handler raises meanwhile arrives."""

from __future__ import annotations

import _thread
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.linux.files import Descriptors
from penstock.linux.when_gone import in_python, when_gone
from penstock.waits import Iteration


class Thing:
    pass


@pytest.fixture
def raises() -> Iterator[Callable[[BaseException], None]]:
    """Have SIGINT's handler raise this error."""
    before = signal.getsignal(signal.SIGINT)

    def of(error: BaseException) -> None:
        def handle(*_: Any) -> None:
            raise error

        signal.signal(signal.SIGINT, handle)

    yield of
    signal.signal(signal.SIGINT, before)


ERRORS = [KeyboardInterrupt("now"), SystemExit(3), TimeoutError(1, "an alarm")]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_error_in_a_callback_is_raised_where_the_thread_goes_on_and_the_call_is_made_again(raises, error):
    """As it was found: Python reports such an error, and goes on."""
    raises(error)
    calls: list[int] = []
    thing = Thing()
    when_gone(thing, in_python(lambda: calls.append(1) or len(calls) > 1 or signal.raise_signal(signal.SIGINT)))
    with pytest.raises(type(error)) as raised:
        del thing
        calls.append(0)  # where Python looks for it
    assert raised.value is error
    assert calls[:2] == [1, 1]


def test_a_signal_that_came_before_the_callback_arrives_after_it(raises):
    error = KeyboardInterrupt()
    raises(error)
    calls: list[int] = []
    thing = Thing()
    when_gone(thing, map(_thread.interrupt_main, ()), in_python(lambda: calls.append(1)))
    when_gone(thing, map(_thread.interrupt_main, (signal.SIGINT,)))  # told first: the newest is
    with pytest.raises(KeyboardInterrupt) as raised:
        del thing
        len(calls)
    assert raised.value is error
    assert calls == [1]


def test_descriptors_are_closed_with_what_has_opened_them_and_none_twice():
    before = set(os.listdir("/proc/self/fd"))
    descriptors = Descriptors()
    fd = descriptors.open(os.open, os.devnull, os.O_RDONLY)
    descriptors.close()
    others = os.open(os.devnull, os.O_RDONLY)
    assert others == fd
    descriptors.close()
    os.fstat(others)
    descriptors.open(os.dup, others)
    descriptors.open(os.dup, others)
    del descriptors
    os.close(others)
    assert set(os.listdir("/proc/self/fd")) == before


def test_an_iteration_that_was_broken_off_as_it_was_made_goes_without_a_word(monkeypatch):
    """As it was found: its end complained of what it did not have."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.waits._Figures", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Iteration(object())
