"""What the words of a command ask its script for."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

_LAUNCHER = re.compile(
    r"(.*/)?(python[\d.]*|bash|sh|torchrun|accelerate|deepspeed|mpirun|mpiexec|srun|uv|env|nice|taskset|numactl|nsys|ncu)"
)
_LAUNCHING_MODULES = ("torch.distributed.", "accelerate.", "deepspeed.")
_SCRIPT = re.compile(r"[^-].*\.(py|sh)", re.DOTALL)
_OPTION = re.compile(r"--([^\W\d][\w.-]*)(?:=(.*))?", re.DOTALL)
_ASSIGNMENT = re.compile(r"\+{0,2}([^\W\d][\w./]*)=(.*)", re.DOTALL)
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)


@lru_cache(maxsize=4096)
def options_of(command: tuple[str, ...]) -> Mapping[str, str]:
    """Return the options of a command's script by name, as text.

    Of ``--lr 0.1``, ``--lr=0.1``, ``--layers 64 128``, ``--amp`` (``"true"``), and Hydra's ``optimizer.lr=0.1``.
    Which words a script takes for an option's, only it knows: the first counts, or all numbers.
    """
    options: dict[str, str] = {}
    words = deque(command[_script_at(command) + 1 :])
    while words:
        word = words.popleft()
        if option := _OPTION.fullmatch(word):
            values = [] if option[2] is None else [option[2]]
            if not values and words and (NUMBER.fullmatch(words[0]) or not words[0].startswith("-")):
                values.append(words.popleft())
                while words and all(map(NUMBER.fullmatch, (values[-1], words[0]))):
                    values.append(words.popleft())
            options[option[1]] = " ".join(values) if values else "true"
        elif assigned := _ASSIGNMENT.fullmatch(word):
            options[assigned[1]] = assigned[2]
    return options


def script_of(command: Sequence[str]) -> str:
    """Return the first word of a command that names a file of Python; empty if none does."""
    return next((word for word in command if word.endswith(".py")), "")


def _script_at(command: Sequence[str]) -> int:
    """Return the place of a command's script, after which come its own words."""
    if _LAUNCHER.fullmatch(command[0]):
        for at, (word, following) in enumerate(pairwise(command)):
            if word in {"-m", "-c"} and not following.startswith(_LAUNCHING_MODULES):
                return at + 1
            if _SCRIPT.fullmatch(following):
                return at + 1
    return 0
