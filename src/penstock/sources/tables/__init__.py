"""Tables of columns in row groups, as in Parquet and Arrow files: which rows come when, and their arrays."""
