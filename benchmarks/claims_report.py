"""How a benchmark says what came of its claims."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from penstock.runs.machine import describe


def report(claims: Sequence[dict[str, Any]], path: Path | None, **measured: Any) -> None:
    """Print claims; write them to a JSON file, if one is named, with all that was measured."""
    for one in claims:
        print(
            f"{one['claim']}: {one['measured']:.3g}, target {one['target']}: {'met' if one['met'] else 'missed'}"
        )
    if path:
        results = {"claims": claims, **measured, "machine": msgspec.to_builtins(describe())}
        path.write_text(json.dumps(results, indent=1) + "\n")
