"""What changes reaches every open page, whatever happened in between."""

from __future__ import annotations

import pytest
from tests.web.seeded import group


@pytest.mark.whole
def test_what_changed_while_nothing_could_be_told_comes_afterwards(page, store, feeds_directory):
    group(store, "before")
    with page.changes() as changes:
        next(changes)
        feeds_directory.chmod(0o777)
        try:
            while "error" not in (change := next(changes)):
                pass
            assert str(feeds_directory) in change["error"]
            group(store, "meanwhile")
            assert all("error" in next(changes) for _ in range(2))
        finally:
            feeds_directory.chmod(0o700)
        while "error" in (change := next(changes)):
            pass
        assert [row["group"] for row in change["rows"]] == ["meanwhile"]
