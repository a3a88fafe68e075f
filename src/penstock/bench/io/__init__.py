"""The benchmark of read mechanisms: what each moves, and what it costs in CPU."""
