"""Workers that make blocks: the seam behind which they are processes here, on other machines, or this process.

``penstock.testing.workers`` ships its test suite.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, Protocol, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")
Task_contra = TypeVar("Task_contra", contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)
Steps = Generator[None, None, Result_co]
"""A task under way: each ``next`` does a step, and the last one returns its result."""


class Workers(Protocol[Task_contra, Result_co]):
    """Workers that do tasks, each once in the end, whatever becomes of a worker.

    A worker that dies is replaced, and its tasks are done again; a task is an error if it killed several.
    All of them end with the process that they work for.
    """

    @property
    def capacity(self) -> int:
        """Tasks that can be under way without one waiting for a worker."""
        ...

    def prepare(self, setup: tuple[Any, ...], files: Sequence[int]) -> None:
        """Set what workers that start from now on are given.

        ``setup`` are arguments of the function that makes a worker's function of a task; ``files`` are descriptors
        of files in memory, which are open under the same numbers where tasks are done.
        """
        ...

    def submit(self, number: int, task: Task_contra) -> None:
        """Have a task done, whose result is asked for by ``number``, which no other task ever has."""
        ...

    def result(self, number: int) -> Result_co:
        """Wait for a task's result."""
        ...

    def settle(self) -> None:
        """Give up the tasks that have not begun, and wait for the others: after that nothing is written."""
        ...

    def close(self) -> None:
        """End the workers, and forget their tasks; those that are submitted later begin with new workers."""
        ...


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
