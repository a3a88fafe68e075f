"""What selecting has cost and saved, for the page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.runs.store import Store
from penstock.select.meter import WATTS
from penstock.select.savings import ESTIMATED_WH, Saving, balances, savings


def selections(store: Store, groups: Iterable[str]) -> list[dict[str, Any]]:
    """Return what each selection among some groups has cost and saved.

    Args:
        store: The store.
        groups: Ids of groups; all runs of groups that are called so count.
    """
    names = (run.group for id in groups for run in store.runs(id)[:1])
    return [_told(saving) for saving in savings(store, names)]


def _told(saving: Saving) -> dict[str, Any]:
    full, selected = saving.full, saving.selected
    measures = balances(saving.scoring, full, selected, WATTS) if full else {}
    return {
        "group": saving.group,
        "against": saving.against,
        "methods": saving.methods,
        "scoring_s": saving.scoring.seconds,
        "measures": [
            msgspec.structs.asdict(balance) | {"unit": unit, "after": balance.pays_after}
            for unit, balance in measures.items()
        ],
        "reached": [
            {"name": name, "selected": values, "full": full.logged.get(name, []) if full else []}
            for name, values in sorted(selected.logged.items())
        ],
        "watts": WATTS if ESTIMATED_WH in measures else None,
    }
