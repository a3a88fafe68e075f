"""A feeder in a process of its own: ``feeder.py '{"name": …, "source": {…}, "settings": {…}}'``.

A ``memory`` is what a fake GPU is made with.
"""

from __future__ import annotations

import json
import sys

import penstock
from sources import make


def main() -> None:
    order = json.loads(sys.argv[1])
    if "memory" in order["settings"]:
        from tests.fakes.gpu import FakeGpu

        order["settings"]["memory"] = FakeGpu(**order["settings"]["memory"])
    with penstock.Feeder(make(**order["source"]), order["name"], **order["settings"]) as feeder:
        try:
            feeder.run()
        except penstock.errors.SourceError:
            sys.exit(3)


if __name__ == "__main__":
    main()
