"""The process that ``share`` starts for a feeder: reads its order, serves, and ends by itself."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from io import FileIO
from types import FrameType

import cloudpickle
import msgspec

from penstock.errors import PenstockError
from penstock.feed.feeder import Feeder
from penstock.feed.share import Order, Ready


def main(lock_fd: int, ready_fd: int) -> int:
    """Serve the feed that standard input describes; 0 when it ended as it should."""
    lock = FileIO(lock_fd, "r+")
    os.set_inheritable(lock_fd, False)
    os.set_inheritable(ready_fd, False)
    signal.signal(signal.SIGTERM, _terminate)
    with open(ready_fd, "wb") as ready:
        try:
            order: Order = cloudpickle.load(sys.stdin.buffer)
            feeder = Feeder(
                order.make_loader(), order.name, lock=lock, **_arguments(order)
            )
        except BaseException as error:
            text = traceback.format_exc()
            if isinstance(error, PenstockError):
                report = Ready(str(error), type(error).__name__, text)
            else:
                report = Ready(
                    f"make_loader raised {type(error).__name__}: {error}\n\nIn the feeder:\n{text}", "", text
                )
            ready.write(msgspec.msgpack.encode(report))
            return 1
        ready.write(msgspec.msgpack.encode(Ready()))
    try:
        feeder.run()
    except PenstockError:
        return 1  # every trainer has been told
    return 0


def _arguments(order: Order) -> dict[str, object]:
    settings = msgspec.structs.asdict(order.settings)
    settings["window"] = settings.pop("window_bytes")
    return settings


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
