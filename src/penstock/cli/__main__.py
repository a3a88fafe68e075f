"""``python -m penstock.cli``: the ``penstock`` command, if its script is not on the path."""

from penstock.cli import main

main()
