"""``python -m penstock``: the ``penstock`` command, where its script is not on the path."""

from penstock.cli import main

main()
