"""What is kept is what makes cycles shorter."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.io.cache.admission import ImageCosts, choose_kept

COSTS = ImageCosts(110_000, 600_000, read_s=0.0001, decode_s=0.001, finish_s=0.0001)
GB = 1e9


def chosen(costs: ImageCosts = COSTS, **given: Any) -> str:
    return choose_kept(costs, **settings(**given))[0].kind


def settings(**given: Any) -> dict[str, Any]:
    usual = {"images": 100_000, "workers": 8, "cores": 8, "reads_ahead": False, "memory_bytes": 0.0}
    return {**usual, "disk_bytes": 1000 * GB, "disk_bytes_per_s": 5 * GB, **given}


def test_pixels_of_all_images_are_kept_if_there_is_room_and_the_disk_is_fast() -> None:
    assert chosen() == "pixels"
    assert chosen(disk_bytes=0.0, memory_bytes=100 * GB) == "pixels"


def test_bytes_are_kept_if_the_disk_gives_less_pixels_than_workers_decode() -> None:
    assert chosen(disk_bytes_per_s=1 * GB) == "bytes"


@pytest.mark.parametrize("reads_ahead", [False, True])
def test_bytes_are_kept_if_the_store_is_slow_and_pixels_of_few_images_have_room(reads_ahead: bool) -> None:
    slow = COSTS._replace(read_s=0.02)
    assert chosen(slow, disk_bytes=11 * GB, reads_ahead=reads_ahead) == "bytes"
    assert chosen(slow, disk_bytes=70 * GB, reads_ahead=reads_ahead) == "pixels"


@given(
    read_s=st.floats(0, 0.1),
    room=st.integers(0, int(100 * GB)),
    disk=st.floats(1e7, 1e10),
    memory=st.integers(0, int(100 * GB)),
    reads_ahead=st.booleans(),
)
def test_it_expects_no_less_than_without_a_cache_and_takes_no_more_room_than_there_is(
    read_s, room, disk, memory, reads_ahead
):
    costs = COSTS._replace(read_s=read_s)
    given = settings(disk_bytes=room, disk_bytes_per_s=disk, memory_bytes=memory, reads_ahead=reads_ahead)
    choice = choose_kept(costs, **given)[0]
    nbytes = costs.nbytes if choice.kind == "bytes" else costs.pixel_bytes
    assert choice.part * 100_000 * nbytes <= (room + memory) * 1.000001
    if disk > 8 * GB:
        without = 8 / (costs.read_s + costs.decode_s + costs.finish_s)
        assert choice.images_per_s >= without * 0.9
