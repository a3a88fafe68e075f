"""What a conductor hands a feed that asks again, and what becomes of copies that cannot be fetched."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    "what",
    ["asks again", "loses a copy", "waits for a copy", "forgets a copy", "fetches none"],
)
def test_a_copy_that_cannot_be_fetched_is_left_to_the_feeder(what):
    command = [sys.executable, "-m", "tests.ray.conductor_asked", what]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run(command, env=environment, check=True, timeout=250)
