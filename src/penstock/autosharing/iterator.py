"""What a shared DataLoader returns when it is iterated, in place of torch's iterator."""

# torch's own annotations leave a loader's samples and settings unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any, Self

import torch

from penstock.autosharing.messages import decline, place, say_reads
from penstock.autosharing.options import ShareOptions
from penstock.autosharing.script_feed import OtherData, ScriptFeed
from penstock.autosharing.verdict import Declined
from penstock.basics.terminal import say_once
from penstock.errors import BadSetting, SettingsDiffer, SourceError
from penstock.feed.trainer.loader import Loader
from penstock.sources.torch.sampling import draw


class ScriptDraws:
    """Moves a script's sampler and random numbers as iterating its loader would.

    The model's random stream stays the script's, as does the number of batches: they end when the sampler does. Of
    the indices that torch takes ahead for workers, only those of one batch are: a sampler that draws at each step
    draws later here. It is made as soon as the loader's iterator is asked for; ``workers_live_on`` says that the
    loader's workers have been seeded already, and persist.
    """

    def __init__(self, loader: Any, *, of_stream: bool, workers_live_on: bool = False) -> None:
        self._generator: torch.Generator = loader.generator or torch.default_generator
        self._before = self._states()
        self._indices: Iterator[Any] = iter(loader._index_sampler)
        if not workers_live_on:
            draw(self._generator)  # the seed of its workers
        self._of_stream = of_stream  # whether its sampler never ends, as over an ``IterableDataset``
        self._first: list[Any] = []
        if loader.num_workers and not of_stream:  # workers are given their first indices at once
            self._first = list(islice(self._indices, 1))

    def next(self) -> None:
        """Draw what the next batch takes."""
        if self._of_stream:
            return
        if self._first:
            self._first.pop()
        else:
            next(self._indices)

    def made_from_before(self, make: Callable[[], Any]) -> Any:
        """Make the loader's own iterator after all; it draws what has been drawn here."""
        now = self._states()
        self._set(self._before)
        try:
            return make()
        finally:
            self._set(now)

    def _states(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.default_generator.get_state(), self._generator.get_state()

    def _set(self, states: tuple[torch.Tensor, torch.Tensor]) -> None:
        torch.default_generator.set_state(states[0])
        self._generator.set_state(states[1])


_STATE = "penstock"
_asks = count(1)


class SharedIterator:
    """Gives a loop its batches from a feed, as many as the script's own sampler has.

    It joins the feed when its first batch is asked for. Whatever fails until then is printed in one line, and the
    loop goes on with the loader's own iterator.
    """

    def __init__(
        self,
        loader: Any,  # the script's loader
        decide: Callable[[Any], ScriptFeed | None],
        feed: ScriptFeed,  # the feed that it reads
        make: Callable[[], Any],
        options: ShareOptions,
    ) -> None:
        self._decide = decide  # decides, at each epoch, which feed is read; None for none
        self._make = make  # makes the loader's own iterator
        self._options = options  # whether failures are raised, and whether what could not be compared is printed
        self._own: Any = None  # the loader's own iterator, once it was needed
        self._private: Any = None  # the same in an epoch that reads no feed
        self._loader: Loader | None = None
        self._begin(loader, feed, is_first=True)

    def _begin(self, loader: Any, feed: ScriptFeed, *, is_first: bool) -> None:
        self.asked = 0  # number of the batch that was asked for last, of all that this process has asked for
        self._script = loader
        self._feed = feed
        self._draws = ScriptDraws(loader, of_stream=feed.plan.kind == "stream", workers_live_on=not is_first)
        self._state: dict[str, Any] | None = None  # where it stood when its Loader was taken over
        self._loop: Iterator[Any] = iter(())
        self._held: list[Any] = []
        self.given = 0  # batches that it has given
        self.look: list[Any] = []
        """A copy of the first batch of a new feed, for as long as that may have been a mere look; else nothing."""
        self._over = False

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return len(self._script._index_sampler)

    def __next__(self) -> Any:
        if self._private is None and self._loader is None and not self._over:
            self._join()
        if self._private is not None:
            return next(self._private)
        if self._over:
            raise StopIteration
        self.asked = next(_asks)
        self._feed.let_rest(self.asked)
        self._feed.proof.go_on()
        try:
            self._draws.next()
            batch = self._held.pop() if self._held else self._read()
        except StopIteration:
            self._end()
            raise
        except SourceError:  # the feed has ended, and with it this epoch
            self._drop()
            self._over = True
            self._feed.failed = "its data set has raised an error, which ends a feed: it goes on by itself"
            raise
        self.given += 1
        is_look = self.given == 1 and self._feed.is_new and self.given != self._feed.plan.batches
        self.look = [copy.deepcopy(batch)] if is_look else []
        return batch

    def part(self) -> Loader:
        """Give up the Loader to another iteration, and save where this one stands."""
        assert self._loader is not None
        self._state = self._loader.state_dict()
        loader, self._loader, self._loop = self._loader, None, iter(())
        return loader

    def rest(self) -> None:
        """Leave the feed until it is asked again."""
        if self._loader is not None:
            self.part().close()

    def _join(self) -> None:
        """Get a Loader and its first batch, or the loader's own iterator if that fails."""
        if self._state is not None and self._feed.meeting:
            decline(
                self._script, "its iteration was left for another: it goes on without the feed, in another order"
            )
            self.go_alone()
            return
        state, looked_at = self._state, list[Any]()
        try:
            if state is None:
                self._feed = self._feed.without_others(self)
                self._loader = self._feed.take(self)
                looked_at, self._feed.looked_at = self._feed.looked_at, []
            else:
                self._loader = self._feed.joined_anew(state)
                self._loader.load_state_dict(state)
            self._state = None
            if self._feed.meeting and not looked_at:
                self._feed.meeting.hold()
            self._loop = iter(self._loader)
            self._held = looked_at or [next(self._loop)]
            if not looked_at:
                self._prove()
        except Exception as error:
            if self._options.strict or self.given:
                raise
            decline(self._script, error)
            if isinstance(error, (BadSetting, SourceError)) and not isinstance(error, SettingsDiffer):
                # The next feeder would fail, too; one that has other settings may have ended by then.
                self._feed.failed = str(error)
            if isinstance(error, Declined) and not isinstance(error, OtherData):
                self._let_go()
            else:
                self._drop()
            self.go_alone()
        except BaseException:  # Ctrl-C: what has come was neither compared nor handed out
            self._state, self._feed.looked_at = state, looked_at
            self._drop()
            raise
        else:
            say_reads(self._feed, self._loader)

    def _prove(self) -> None:
        """Check that the feed gives what the script's own data set does."""
        assert self._loader is not None
        proof, meeting = self._feed.proof, self._feed.meeting
        proof.begin_epoch(self._script, self._loader)
        if meeting:
            proof.refusal = meeting.agreed(proof.refusal)
        if proof.refusal:
            self._feed.meeting = None
            raise OtherData(proof.refusal)
        if proof.unproved and self._options.explain:
            say_once(f"what {place()} reads was not compared with its own data: {proof.unproved}")
        elif proof.random and self._options.explain:
            say_once(f"what {place()} reads was compared but for {proof.random}, another each time it is made")

    def go_alone(self) -> None:
        """Give this epoch by the loader's own iterator, from where it stands."""
        self._private = self._own = self._draws.made_from_before(self._made)
        for _ in islice(self._private, self.given):
            pass

    def _made(self) -> Any:
        """Make the loader's own iterator, or begin another epoch of one whose workers persist."""
        if self._own is None:
            return self._make()
        self._own._reset(self._script)
        return self._own

    def _read(self) -> Any:
        try:
            return next(self._loop)
        except StopIteration:
            if self._loader is None or self._feed.plan.kind == "stream":
                raise
        self._loop = iter(self._loader)  # the sampler goes on: it repeats itself without end
        return next(self._loop)

    def _end(self) -> None:
        self._over = True
        self.look = []
        if self.given == self._feed.plan.batches:
            next(self._loop, None)  # else the epoch would count as broken off
        self._let_go()

    def _let_go(self) -> None:
        loader, self._loader, self._loop = self._loader, None, iter(())
        if loader is not None:
            self._feed.give_back(self, loader)

    def _drop(self) -> None:
        """Leave a feed that cannot be read."""
        loader, self._loader, self._loop = self._loader, None, iter(())
        self._feed.forget(self)
        if loader is not None:
            loader.close()

    def _reset(self, loader: Any, *rest: Any, **named: Any) -> None:
        """Begin another epoch, as torch asks it of an iterator with persistent workers."""
        self._let_go()
        if feed := self._decide(loader):
            self._private = None
            self._begin(loader, feed, is_first=False)
        elif self._own is None:
            self._private = self._own = self._make()
        else:
            self._own._reset(loader, *rest, **named)
            self._private = self._own

    def __del__(self) -> None:
        self._let_go()


class StatefulIterator(SharedIterator):
    """Stands for an iterator of torchdata's ``StatefulDataLoader``, which asks it where it stands."""

    def _begin(self, loader: Any, feed: ScriptFeed, *, is_first: bool) -> None:
        saved = loader.next_iter_state
        if saved is not None and _STATE not in saved:
            raise Declined("its state was saved without a feed, and is loaded as it is")
        super()._begin(loader, feed, is_first=is_first)
        if saved is not None:
            self._state, given, self._over = saved[_STATE]
            try:
                for _ in range(given):
                    self._draws.next()
            except StopIteration:
                raise Declined(f"its state stands behind {given} batches, and its sampler has fewer") from None
            self.given = given
        loader.next_iter_state = None

    @property
    def _finished(self) -> bool:
        return self._over if self._private is None else self._private._finished

    def state_dict(self) -> dict[str, Any]:
        """Return where this iteration stands, in plain numbers."""
        if self._private is not None:
            return self._private.state_dict()
        state = self._state if self._loader is None else self._loader.state_dict()
        return {_STATE: [state, self.given, self._over]}
