"""The feeds of this user: what runs, how it stands, and how to end it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from io import FileIO
from typing import NamedTuple

import psutil

from penstock.basics.sizes import whole_number
from penstock.errors import FeederSilent, FeedNotFound, PenstockError, ProtocolError, Refused
from penstock.feed import wire
from penstock.feed.endpoint import Endpoint, checked_name
from penstock.feed.queries import ANSWER_S, answer_to, family_of, feeds
from penstock.feed.suffix import root_of
from penstock.feed.trainer.error_texts import silent, unknown
from penstock.fingerprint.comparison import Fingerprint

__all__ = ["Ended", "feeds", "made_of", "move", "stop", "stop_suffixed"]

_ANSWER_S = ANSWER_S
_STOP_ANSWER_S = 5.0
_END_S = 10.0
_LOOK_S = 0.02


class Ended(NamedTuple):
    """The feeder that ``stop`` ended.

    Attributes:
        pid: Process of the feeder; 0 if its lock did not name it.
        signals: Signals that the process had to be sent, because it did not answer; empty if it did.
    """

    pid: int
    signals: tuple[str, ...] = ()


def stop(name: str) -> Ended:
    """End a feed, and those parted from it; return once its feeder is gone. Its trainers get ``FeedStopped``.

    A feeder that does not answer within 5 s is ended by signals to the process
    that holds the feed's lock: SIGTERM, and after another 5 s SIGKILL. A feeder that SIGKILL ends sends nothing:
    trainers under ``attach`` then get ``FeederLost``, and one under ``share`` starts another feeder.

    Args:
        name: The feed's name.

    Returns:
        Which process ended, and what signals that took.

    Raises:
        FeedNotFound: no feed has this name; the message lists those that run.
        FeederSilent: the feeder has answered and not ended within 10 s, because its source does not return; or
            it does not answer, and no process of this user holds its lock.

    Examples:
        >>> feeder = penstock.Feeder(penstock.ArraySource(np.arange(100)), "numbers", linger=60)
        >>> threading.Thread(target=feeder.run).start()
        >>> penstock.stop("numbers").signals
        ()
    """
    parted = [feed.name for feed in family_of(name) if feed.name != name]
    ends, errors = list[Ended](), list[PenstockError]()
    for each in (name, *parted):  # the first of them first: it could start others
        try:
            ends.append(_ended(Endpoint(each)))
        except PenstockError as error:
            errors.append(error)
    if errors and not (ends and isinstance(errors[0], FeedNotFound)):
        raise errors[0]
    return ends[0]


def _ended(endpoint: Endpoint) -> Ended:
    name, owner = endpoint.name, endpoint.owner()
    pid = owner.pid if owner else 0
    if _obeys(endpoint):
        if (lock := _gone(endpoint, _END_S)) is None:
            raise FeederSilent(
                f"the feeder (process {pid}) of feed {name!r} was asked to end, and has not within "
                f"{_END_S:.0f} s: its source does not return. Look at its processes, or kill them"
            )
        endpoint.remove(lock)
        return Ended(pid)
    if (lock := endpoint.acquire()) is not None:
        endpoint.remove(lock)
        raise FeedNotFound(unknown(name))
    return _killed(endpoint)


def stop_suffixed(suffix: str) -> None:
    """End the feeds of runs that ``PENSTOCK_FEED_SUFFIX`` has put on feeds of their own."""
    for feed in feeds():
        if root_of(feed.name).endswith(f"-{suffix}"):
            with suppress(FeedNotFound):
                stop(feed.name)


def move(name: str, pid: int, to: str, *, now: bool = False) -> None:
    """Have a trainer begin its next epoch on another feed; return once its feeder has sent it there.

    Process ``pid``, as in ``feeds()``, reads feed ``name``. It joins feed ``to``, of the same ``make_loader`` and
    settings and started by ``share``, as a late trainer, and its epochs stay whole. If by then no feed ``to``
    runs, or that has other samples or another order, the trainer stays where it is, and prints why on its standard
    error. A later call replaces an earlier one; with ``to`` the present feed, it stays.

    With ``now`` it goes on there from its place, amid its epoch, as soon as feed ``to`` serves. If that does not
    run, the trainer starts it in the background, where it was started by ``share``, and reads on meanwhile.
    """
    endpoint = Endpoint(name)
    request = wire.MoveTrainer(whole_number("pid", pid, 1, 2**31), checked_name(to), now)
    try:
        answer = answer_to(endpoint, request, _ANSWER_S)
    except TimeoutError:
        raise silent(endpoint, _ANSWER_S) from None
    except OSError:
        answer = None
    if answer is None:
        raise FeedNotFound(unknown(name))
    if isinstance(answer, wire.Rejected):
        raise Refused(f"feed {name!r} moves no trainer: {answer.reason}")


def made_of(name: str) -> Fingerprint | None:
    """Return the fingerprint of what a feed's loader was made of; None if its feeder does not answer."""
    try:
        answer = answer_to(Endpoint(name), wire.FingerprintRequest(), _ANSWER_S)
    except (OSError, ProtocolError):
        return None
    return answer.fingerprint if isinstance(answer, wire.MadeOf) else None


def _obeys(endpoint: Endpoint) -> bool:
    """Ask a feeder to end; False if it does not answer."""
    deadline = time.monotonic() + _STOP_ANSWER_S
    while True:
        try:
            with endpoint.connect(_STOP_ANSWER_S) as peer:
                peer.settimeout(_STOP_ANSWER_S)
                peer.send(wire.encode(wire.Stop(os.getpid())))
                peer.recv(wire.MAX_PACKET_BYTES)
                return True
        except TimeoutError:
            return False
        except (ConnectionRefusedError, FileNotFoundError):
            # Nobody serves; while the lock is held, somebody starts, or ends.
            if (lock := endpoint.acquire()) is not None:
                endpoint.remove(lock)
                raise FeedNotFound(unknown(endpoint.name)) from None
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_S)
        except OSError:  # it ended just now
            return True


def _killed(endpoint: Endpoint) -> Ended:
    """End the process that holds a feed's lock."""
    process = _holder(endpoint)
    sent: list[str] = []
    for name in ("SIGTERM", "SIGKILL"):
        sent.append(name)
        try:
            process.send_signal(signal.Signals[name])  # to no other process that has this pid by now
            process.send_signal(signal.SIGCONT)  # else a stopped process would not handle SIGTERM
        except psutil.NoSuchProcess:
            pass
        if (lock := _gone(endpoint, _STOP_ANSWER_S)) is not None:
            endpoint.remove(lock)
            return Ended(process.pid, tuple(sent))
    raise silent(endpoint, _STOP_ANSWER_S)


def _holder(endpoint: Endpoint) -> psutil.Process:
    """Return the process that the lock names, if it is this user's and has the lock open."""
    owner = endpoint.owner()
    try:
        process = psutil.Process(owner.pid if owner else 0)
        if process.uids().real == os.getuid() and process.pid != os.getpid():
            files = f"/proc/{process.pid}/fd"
            if any(endpoint.is_lock(os.stat(f"{files}/{fd}")) for fd in os.listdir(files)):
                return process
    except (psutil.Error, OSError):
        pass
    raise FeederSilent(
        f"{silent(endpoint, _STOP_ANSWER_S)}. It was not ended: no process of yours is known to hold "
        f"{endpoint.lock_path}"
    )


def _gone(endpoint: Endpoint, wait_s: float) -> FileIO | None:
    """Take the feed's lock once its feeder has given it up; None if it does not in time."""
    deadline = time.monotonic() + wait_s
    while (lock := endpoint.acquire()) is None and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return lock
