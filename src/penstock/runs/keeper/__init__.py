"""The process that looks after one run: starts its command, reaps all below it, and records how it ended."""
