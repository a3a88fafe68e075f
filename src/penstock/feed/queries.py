"""A feeder's answers to whoever asks: its statistics, above all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from penstock.errors import ProtocolError
from penstock.feed import wire
from penstock.feed.endpoint import Endpoint, endpoints
from penstock.feed.statistics import FeederStatistics
from penstock.feed.suffix import root_of
from penstock.linux.process import cpu_s, with_descendants

ANSWER_S = 2.0


class FeedUsage(NamedTuple):
    """A feed that processes read."""

    name: str
    pid: int
    cpu_s: float  # CPU time of its feeder and that one's workers
    samples: int  # samples that it has published
    samples_per_epoch: int | None  # samples of a cycle; None where only a pass of the source shows it


def feeds(answer_s: float = ANSWER_S) -> list[FeederStatistics]:
    """List every feed of this user, sorted by name, and remove what dead feeders left behind.

    A feeder that does not answer in time (it is stopped, or too busy) is listed
    with its name and pid only, and ``answers`` is False. A feed that is starting is
    left out.

    Args:
        answer_s: Time within which each feeder has to answer, in seconds.

    Returns:
        The statistics of each feed.

    Raises:
        InsecureDirectory: others could enter the directory of the sockets.
        DirectoryUnusable: that directory cannot be made or read.

    Examples:
        >>> feeder = penstock.Feeder(penstock.ArraySource(np.arange(100)), "numbers", linger=60)
        >>> threading.Thread(target=feeder.run).start()
        >>> [feed.name for feed in penstock.feeds()]
        ['numbers']
        >>> feeder.close()
    """
    found = [known for endpoint in endpoints() if (known := statistics_of(endpoint, answer_s)) is not None]
    return sorted(found, key=lambda statistics: statistics.name)


def statistics_of(endpoint: Endpoint, answer_s: float, *, sends: bool = False) -> FeederStatistics | None:
    """Return a feed's statistics, without numbers if its feeder does not answer in time; None if there is none.

    Whoever ``sends`` trainers there has it wait for them.
    """
    try:
        answer = answer_to(endpoint, wire.StatisticsRequest(sends), answer_s)
        if answer is None:  # it ends
            return None
        if isinstance(answer, FeederStatistics) and answer.name == endpoint.name:
            return answer
    except (TimeoutError, ProtocolError):
        pass
    except OSError:
        endpoint.sweep()
        return None
    owner = endpoint.owner()
    return FeederStatistics(endpoint.name, owner.pid if owner else 0, answers=False)


def family_of(root: str, answer_s: float = ANSWER_S) -> list[FeederStatistics]:
    """List the feed of a name, and those that have parted from it."""
    names = [each for each in endpoints() if root_of(each.name) == root]
    return [feed for each in names if (feed := statistics_of(each, answer_s)) is not None]


def most_read(root: str) -> str | None:
    """Return the feed with the most trainers of a family, which newcomers read where nobody serves its root."""
    family = family_of(root) if root_of(root) == root else ()
    return max(((len(feed.trainers), feed.name) for feed in family if feed.trainers), default=(0, None))[1]


def read_by(pids: Collection[int], known: Iterable[FeederStatistics]) -> FeedUsage | None:
    """Return the feed that processes read, of several the busiest; None if they read none that answers."""
    read = [feed for feed in known if any(trainer.pid in pids for trainer in feed.trainers)]
    if not read:
        return None
    feed = max(read, key=lambda each: each.samples)
    feeder_s = cpu_s(with_descendants([feed.pid]))
    return FeedUsage(feed.name, feed.pid, feeder_s, feed.samples, feed.samples_per_cycle)


def answer_to(endpoint: Endpoint, request: wire.FromTrainer, answer_s: float) -> wire.FromFeeder | None:
    """Return a feeder's answer; None if it ends without one."""
    with endpoint.connect(answer_s) as peer:
        peer.settimeout(answer_s)
        peer.send(wire.encode(request))
        packet = peer.recv(wire.MAX_PACKET_BYTES)
    return wire.decode_from_feeder(packet) if packet else None
