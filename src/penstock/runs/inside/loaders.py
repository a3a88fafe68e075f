"""Watches a run's DataLoaders, and shares them if asked: the injected ``sitecustomize`` passes their class."""

from __future__ import annotations

import os

from penstock.autosharing.hook import share_all
from penstock.inject import SHARE, hook
from penstock.runs.inside.watch import watch


def hooked(loader_class: type) -> None:
    """Watch, and share if ``penstock run --share`` asks for it, all loaders of a class.

    Raises:
        TypeError: the class has no such method as every torch since 1.9 has.
    """
    if watch not in hook.GUARDS:
        hook.GUARDS.append(watch)
    if SHARE in os.environ:
        share_all()
    hook.hook(loader_class)
