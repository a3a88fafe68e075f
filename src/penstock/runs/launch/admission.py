"""Which runs of a group may start, while others of it run."""

from __future__ import annotations

from collections.abc import Collection, Mapping


class Admission:
    """Admits runs in order, but those that fit before those that do not fit yet."""

    def __init__(
        self,
        before: Mapping[str, Collection[str]],  # of each run, those that must have ended before it starts
        needs: Mapping[str, Mapping[str, int]],
        room: Mapping[str, int],  # how much of each there is
    ) -> None:
        self._waiting = {run: before.keys() & earlier for run, earlier in before.items()}  # others have ended
        self._needs = needs  # what each run takes while it runs, by names
        self._free = dict(room)

    def take(self) -> list[str]:
        """Return the runs that start now; they take room until their ``end``."""
        taken: list[str] = []
        for run, earlier in self._waiting.items():
            needs = self._needs[run].items()
            if not earlier and all(need <= self._free[name] for name, need in needs):
                self._free |= {name: self._free[name] - need for name, need in needs}
                taken.append(run)
        for run in taken:
            del self._waiting[run]
        return taken

    def end(self, run: str) -> None:
        """Take note that a run that was taken has ended, or will never begin."""
        self._free |= {name: self._free[name] + need for name, need in self._needs[run].items()}
        for earlier in self._waiting.values():
            earlier.discard(run)
