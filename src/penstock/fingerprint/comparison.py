"""Fingerprints of functions and objects, and what differs between two of them."""

from __future__ import annotations

import reprlib

import msgspec

from penstock.basics.terminal import listed
from penstock.fingerprint.file_versions import DataFingerprint

MOST_PARTS = 64
MODULE = "the module "
NOT_CODE = ("__doc__", "__module__", "__firstlineno__", "__static_attributes__", "__dict__", "__weakref__")
SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = 60


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Something that a function uses: its digest and, if it is a value, that as shortened text."""

    digest: str
    shown: str = ""


class Fingerprint(msgspec.Struct, frozen=True):
    """A fingerprint of a function."""

    digest: str  # the version of Python, and a digest of all parts
    parts: dict[str, Part] = {}  # the first parts, by name: ``"the code of make"``, ``"args.data"``
    data: DataFingerprint = DataFingerprint()
    """Versions of the files that its values name, except Python's own. They only lead to warnings: a function may
    write what it reads."""
    built_ins: tuple[str, ...] = ()  # names of what the process has put into ``builtins``, and the code reads

    @property
    def modules(self) -> list[str]:
        """The user's modules that count."""
        return [name.removeprefix(MODULE) for name in self.parts if name.startswith(MODULE)]

    @property
    def digests(self) -> dict[str, str]:
        """Digests by name, without the values, for a file that others may read."""
        python, whole = self.digest.split()
        digests = {
            "the version of Python": python,
            **{name: f"#{part.digest}" for name, part in self.parts.items()},
        }
        return digests if len(self.parts) < MOST_PARTS else {**digests, "all that it uses": f"#{whole}"}


def same_fingerprint(one: Fingerprint, other: Fingerprint) -> bool:
    """Whether two fingerprints may be of one function."""
    (python, digest), (other_python, other_digest) = one.digest.split(), other.digest.split()
    return python != other_python or digest == other_digest


def fingerprint_difference(feeds: Fingerprint, yours: Fingerprint) -> str:
    """Return what differs between two fingerprints, as far as their parts show it."""
    differ: list[str] = []
    for name, one in feeds.parts.items():
        other = yours.parts.get(name)
        if other is not None and one.digest != other.digest:
            seen = one.shown and other.shown and one.shown != other.shown
            differ.append(f"{name} is {one.shown} there and {other.shown} in yours" if seen else f"{name} differs")
    found = [listed(differ)] if differ else []
    theirs, mine = _only_in(feeds, yours), _only_in(yours, feeds)
    if theirs:
        found.append(f"the feed's uses {listed(theirs)}, which yours does not")
    if mine:
        found.append(f"yours uses {listed(mine)}" + ("" if theirs else ", which the feed's does not"))
    return "; ".join(found) or "its code, or a value that it uses, differs"


def _only_in(one: Fingerprint, other: Fingerprint) -> list[str]:
    """List what one function uses and the other does not, classes and functions as wholes; versions last."""
    if len(other.parts) >= MOST_PARTS:  # there are more parts than those
        return []
    known = {_whole(name) for name in other.parts}
    wholes = {_whole(name) for name in one.parts if "." not in name or name.startswith("the ")} - known
    only = [name for name in one.parts if name not in other.parts]
    named = dict.fromkeys(_whole(name) if _whole(name) in wholes else name for name in only)
    return sorted(named, key=lambda name: name.startswith("the version of "))


def _whole(part: str) -> str:
    """Name the class or function of a part: ``Photos`` for ``the code of Photos.__init__``."""
    name = part.removeprefix("the code of ").removeprefix("the bases of ").rpartition("<locals>.")[2]
    return name.partition(".")[0].partition("(")[0]
