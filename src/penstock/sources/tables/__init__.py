"""Tables of columns in row groups, as in Parquet and Arrow files: which rows come when, and their arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Columns = Sequence[str] | Mapping[str, str | Sequence[str]] | None
"""Names of columns; or by names in a batch, a column, or several that become one array; None for all."""
