"""`penstock run` as processes."""

from tests.runs.conftest import launch

__all__ = ["launch"]
