"""The workers' seam without workers: a task is done in this process when its result is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from penstock.sources.workers import Steps

Task = TypeVar("Task")
Result = TypeVar("Result")


class Here(Generic[Task, Result]):
    """This process as the only worker; methods are those of ``Workers``."""

    capacity = 1

    def __init__(self, make: Callable[..., Callable[[Task], Steps[Result]]]) -> None:
        self._make = make  # makes, from the arguments of ``prepare``, the function that does a task in steps
        self._tasks: dict[int, Task] = {}

    def prepare(self, setup: tuple[Any, ...], files: Sequence[int]) -> None:
        self._work = self._make(*setup)

    def submit(self, number: int, task: Task) -> None:
        self._tasks[number] = task

    def result(self, number: int) -> Result:
        steps = self._work(self._tasks.pop(number))
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return done.value

    def settle(self) -> None:
        self._tasks.clear()

    def close(self) -> None:
        self._tasks.clear()
