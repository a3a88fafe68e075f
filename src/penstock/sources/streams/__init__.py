"""Streams: records that arrive all the time, cut into cycles that every trainer reads."""
