"""What torch does not promise: its lack is told at once, and no release is claimed that was not tested."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from tests.forked import Forked

from penstock.sources.torch import compat

ROOM = Path(compat.__file__).parent
SOURCE = Path(compat.__file__).parents[2]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter._shutdown_workers"),
        ("torch.utils.data._utils.collate", "default_collate_fn_map"),
        ("torch.utils.data._utils.collate", "collate_tensor_fn"),
    ],
)
def test_a_torch_without_a_name_that_is_needed_is_refused_when_a_loader_is_adapted(
    servers, tmp_path, module, name
):
    owner, _, last = name.rpartition(".")
    (tmp_path / "script.py").write_text(
        f"import {module} as module\n"
        f"delattr(module{'.' + owner if owner else ''}, {last!r})\n"
        "from torch.utils.data import DataLoader\nimport penstock\n"
        "penstock.Feeder(DataLoader([1, 2]), 'feed')\n"
    )
    done = Forked(servers["torch"], str(tmp_path / "script.py"), [], tmp_path / "said")
    assert done.wait() == 1
    said = (
        f"ImportError: torch {torch.__version__} has no {module}.{name}, which Penstock needs; it was tested with"
    )
    assert said in done.output


def test_no_other_file_uses_what_torch_does_not_promise():
    uses = re.compile(r"torch[\w.]*\._\w|import _[A-Za-z]|\b(loader|iterator)\._[a-z]|vars\(|reportPrivateUsage")
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        if "torch" in text and path.name != "compat.py" and path.is_relative_to(ROOM.parent):
            assert not uses.search(text), path


def test_the_release_that_these_tests_run_with_is_among_those_that_are_claimed():
    release = ".".join(torch.__version__.split(".")[:2])
    assert release in compat.TESTED
