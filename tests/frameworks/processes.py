"""Processes of the frameworks' environment: its Python, and such as are forked from one that has imported them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

from tests.forked import Forked, ForkServer
from tests.support.ports import free_port

from penstock.feed.launch import feeds

PYTHON = Path(os.environ.get("PENSTOCK_FRAMEWORKS") or Path(sys.prefix) / "frameworks/bin/python")
ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).with_name("scripts")
WATCHED = FOLDER / "watched.py"
MODULES = [
    *("accelerate", "lightning.fabric", "timm.data", "torchvision.datasets", "datasets", "transformers.trainer"),
    *("torchdata.stateful_dataloader", "webdataset", "transformers.models.bert.modeling_bert"),
    *("penstock.feed.launch.process", "penstock.feed.launch.shared"),
]


def environment_in(folder: Path, data: Path = Path()) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONWARNINGS"}},
        "COLUMNS": "200",
        "HF_HOME": str(folder / "huggingface"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "FRAMEWORKS_DATA": str(data),
        "FRAMEWORKS_DECODED": str(folder / "decoded"),
    }


def ran(folder: Path, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the environment's Python in a folder, to its end."""
    assert PYTHON.exists(), "make test-frameworks makes the environment"
    env = environment_in(folder) | environment
    done = subprocess.run([PYTHON, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


class Ranks:
    """Processes of one script: its ranks, or the only one; new Pythons, without a server."""

    def __init__(
        self, server: ForkServer | None, folder: Path, words: list[str], ranks: int, environment: dict[str, str]
    ) -> None:
        port = str(free_port())
        world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": port}
        world |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks))
        number = len([*folder.glob("*.said")])
        self._said = folder / f"{number}.said"
        self._errors = [folder / f"{number}.errors.{rank}" for rank in range(ranks)]
        self._ranks: list[Forked | subprocess.Popen[bytes]] = []
        for rank, errors in enumerate(self._errors):
            its = world | dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)) if ranks > 1 else {}
            env = environment | its
            if server is None:
                with self._said.open("ab") as said, errors.open("wb") as told:
                    new = subprocess.Popen([PYTHON, *words], cwd=folder, env=env, stdout=said, stderr=told)
                self._ranks.append(new)
            else:
                output = {"errors": errors, "directory": folder, "environment": env}
                self._ranks.append(Forked(server, words[0], words[1:], self._said, **output, forks_feeders=True))

    def ended(self, *, exit_code: int = 0) -> str:
        """Wait for the end of all; return what they printed."""
        with ThreadPoolExecutor(len(self._ranks)) as each:  # if they hang, all say where
            ends = [*each.map(lambda rank: rank.wait(), self._ranks)]
        assert ends == [exit_code] * len(ends), self.errors
        return self._said.read_text()

    @property
    def errors(self) -> str:
        return "".join(errors.read_text() for errors in self._errors)


class Warm:
    """Starts scripts as processes that are forked from one that has imported the libraries; their feeders, too."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server

    def start(
        self,
        folder: Path,
        *words: str | Path,
        ranks: int = 1,
        data: Path = Path(),
        anew: bool = False,
        **environment: str,
    ) -> Ranks:
        server = None if anew else self._server
        return Ranks(server, folder, [*map(str, words)], ranks, environment_in(folder, data) | environment)

    def printed(self, folder: Path, *words: str | Path, ranks: int = 1) -> list[str]:
        """The lines of a script that has run to its end."""
        return self.start(folder, *words, ranks=ranks).ended().splitlines()


class Page:
    """A script of a page's: the rows that its model is given are noted step by step."""

    def __init__(self, warm: Warm, folder: Path, code: str) -> None:
        self._warm, self._folder, self._page = warm, folder, folder / "page.py"
        self._page.write_text(code)

    def start(
        self, name: str, *words: str | Path, ranks: int = 1, killed_at: int = 0, anew: bool = False
    ) -> Ranks:
        """Start a run, which may be killed at a step, or be a new Python, which has what the page imports only."""
        words = (WATCHED, self._folder / name, self._page, *words)
        return self._warm.start(self._folder, *words, ranks=ranks, anew=anew, FRAMEWORKS_KILLED_AT=str(killed_at))

    def steps(self, name: str, rank: int = 0) -> list[list[int]]:
        """The rows of each step of a run that has ended."""
        return noted(self._folder / f"{name}.{rank}")


def noted(path: Path) -> list[list[int]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def code_of(page: str) -> list[str]:
    """Return the Python of a page, block by block."""
    blocks = (ROOT / "docs" / page).read_text().split("\n```python\n")[1:]
    return [block.partition("\n```")[0] + "\n" for block in blocks]


def stopped_feeds() -> list[str]:
    """End the feeds that linger; return their names."""
    names = [feed.name for feed in feeds.feeds()]
    for name in names:
        feeds.stop(name)
    return names


def rows_of(steps: list[list[int]]) -> list[int]:
    return [*chain(*steps)]
