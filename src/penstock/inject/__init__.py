"""The one way into unmodified programs: a folder first in PYTHONPATH, whose ``sitecustomize`` hooks an import."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

_VARIABLE = "PENSTOCK_INJECT"
_SITE = "PENSTOCK_SITE"
"""The folder that was put first in ``PYTHONPATH``."""
SHARE = "PENSTOCK_SHARE"
"""How the loaders of a run are shared, if they are."""
TOGETHER = "PENSTOCK_TOGETHER"
"""Number of runs that share and start together."""
FEEDER = "PENSTOCK_FEEDER"
"""Set in a feeder and in its workers, whose loaders are never shared."""
FEEDER_NAME = b"penstock-feed"
"""What a feeder that ``share`` started calls its process, 15 bytes at most (proc_pid_comm(5))."""
WATCH = "PENSTOCK_WATCH"
"""What is hooked in a run, joined by commas: "loaders", which it is without this variable, and "metrics"."""
MODE = "PENSTOCK_MODE"
"""The mode of a run whose GPU a feed cannot have beyond it, "mps" or "mig"."""
_VARIABLES = (_VARIABLE, _SITE, SHARE, TOGETHER, WATCH)


def injected(environment: Mapping[str, str], site: str) -> dict[str, str]:
    """Return the environment of a program, and of all that it starts, with the ``sitecustomize`` of a folder."""
    clean = without_injection(environment)
    path = os.pathsep.join(filter(None, (site, clean.get("PYTHONPATH"))))
    return {**clean, "PYTHONPATH": path, _VARIABLE: f"{sys.hexversion:x}:{sys.prefix}", _SITE: site}


def without_injection(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program that Penstock starts for itself."""
    clean = {name: value for name, value in environment.items() if name not in _VARIABLES}
    site = environment.get(_SITE)
    if site in (entries := clean.get("PYTHONPATH", "").split(os.pathsep)):
        clean["PYTHONPATH"] = os.pathsep.join(entry for entry in entries if entry != site)
        if not clean["PYTHONPATH"]:
            del clean["PYTHONPATH"]
    return clean
