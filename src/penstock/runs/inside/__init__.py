"""What of a run happens inside its script: values it logs, waits that are recorded, steps that are profiled."""

from __future__ import annotations

from pathlib import Path

SITE = str(Path(__file__).parent / "site")
"""Folder of the ``sitecustomize`` that a run's Pythons start with."""
