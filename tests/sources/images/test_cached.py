"""Images from a cache have the pixels that they have without it, whatever happens to it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.forked import eventually
from tests.sources.images.pictures import encoded, jpeg, noise, textures

from penstock import Cache, ImageSource
from penstock.contracts import Cursor
from penstock.errors import BadSetting
from penstock.io.cache.folder import CacheFolder, open_to_read
from penstock.io.cache.slab import Item
from penstock.sources.samples.worker import SampleWriter

pytestmark = pytest.mark.whole

SIZE = 16
COUNT = 50
KINDS = ("bytes", "pixels")
PAST_THE_PAGE_CACHE = "100TB"  # larger than half of any memory


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    textures(tmp_path / "images", COUNT)
    for i in range(8):
        (tmp_path / "images" / "class-0" / f"p{i}.png").write_bytes(encoded(noise(40 + i, 50, i), ".png"))
        (tmp_path / "images" / "class-1" / f"w{i}.webp").write_bytes(encoded(noise(50, 40 + i, i), ".webp"))
    long_ago = 1_000_000_000
    for path in (tmp_path / "images").rglob("*.*"):
        os.utime(path, (long_ago, long_ago))
    time.sleep(0.15)  # files that were written just now are not kept
    return tmp_path / "images"


def made(folder: Path, cache: Cache | None, **options: Any) -> ImageSource:
    return ImageSource(
        folder, cache=cache, **{"size": SIZE, "batch_size": 8, "workers": 2, "segments": 2, **options}
    )


def cycles(source: ImageSource, numbers: Sequence[int]) -> list[np.ndarray]:
    return [block.tree[0].copy() for cycle in numbers for block in source.open(Cursor(cycle, 0))]


def equal(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return len(one) == len(other) and all(map(np.array_equal, one, other))


@pytest.fixture
def plain(folder: Path) -> list[list[np.ndarray]]:
    """The blocks of cycles 0, 1 and 2, without a cache."""
    with closing(made(folder, None)) as source:
        return [cycles(source, [cycle]) for cycle in range(3)]


@pytest.mark.parametrize(
    ("kind", "memory", "size"),
    [
        *(("bytes", 0, "50MB"), ("pixels", 0, PAST_THE_PAGE_CACHE)),
        *(("pixels", "200KB", "50MB"), ("bytes", "50MB", "50MB")),
    ],
)
def test_pixels_are_the_same_from_memory_from_disk_and_from_the_images(
    folder, tmp_path, plain, kind, memory, size, make
):
    source = make(folder, Cache(tmp_path / "cache", size, memory=memory, keep=kind))
    for cycle in range(3):
        assert equal(cycles(source, [cycle]), plain[cycle])
    counts, samples = source.cached, source.samples
    assert counts.hits + counts.missed == 3 * samples
    assert counts.kept == samples
    assert (counts.memory > 0, counts.disk > 0) == (memory != 0, memory != "50MB")
    source.close()
    assert equal(cycles(source, [1]), plain[1])  # of memory, only the folder's part is left
    if not memory:
        assert source.cached.missed == samples


@pytest.mark.parametrize("kind", KINDS)
def test_another_source_finds_what_was_kept(folder, tmp_path, plain, kind, make):
    first = make(folder, Cache(tmp_path / "cache", "50MB", keep=kind))
    cycles(first, [0])
    first.close()
    # "auto" goes on with what is there.
    second = make(folder, Cache(tmp_path / "cache", "50MB"), batch_size=16, seed=5)
    assert equal(cycles(second, [4]), cycles(make(folder, None, batch_size=16, seed=5), [4]))
    assert (second.cached.disk, second.cached.missed) == (second.samples, 0)
    assert f"from {kind} in the cache" in second.description


@pytest.mark.parametrize("part", [0.5, 0.95])
def test_every_cycle_finds_the_part_for_which_there_is_room(tmp_path, part, make):
    image = jpeg(noise(40, 40))
    count = 1000
    (tmp_path / "images").mkdir()
    for i in range(count):
        (tmp_path / "images" / f"{i}.jpg").write_bytes(image)
    time.sleep(0.15)
    record = 4096 * -(-len(image) // 4096) + 36
    cache = Cache(tmp_path / "cache", round(part * count * record) + 20_000, keep="bytes")
    source = make(tmp_path / "images", cache, size=8, batch_size=50)
    before = 0
    for cycle in range(4):
        cycles(source, [cycle])
        if cycle:
            assert abs((source.cached.hits - before) / count - part) <= 0.01
        before = source.cached.hits


def test_images_that_are_replaced_while_a_source_lives_come_new(folder, tmp_path, make):
    """Whichever worker has seen the old ones."""
    for kind in KINDS:
        source, plain = (make(folder, cache) for cache in (Cache(tmp_path / kind, "50MB", keep=kind), None))
        cycles(source, [0, 1])
        for i, path in enumerate(sorted(folder.rglob("*.jpg"))):
            other = path.with_suffix(".new")
            other.write_bytes(jpeg(noise(40, 50, 100 + i)))
            other.replace(path)
        time.sleep(0.15)
        for cycle in (1, 2, 3):
            assert equal(cycles(source, [cycle]), cycles(plain, [cycle]))


def test_one_image_larger_than_the_cache_keeps_no_other_out(folder, tmp_path, make):
    (folder / "class-0" / "huge.png").write_bytes(
        encoded(np.random.default_rng(0).integers(0, 255, (900, 900, 3), np.uint8), ".png")
    )
    time.sleep(0.15)
    source = make(folder, Cache(tmp_path / "c", "2MB", keep="bytes"))
    for cycle in range(2):
        cycles(source, [cycle])
    assert source.cached.kept == source.samples - 1


def test_a_damaged_index_is_begun_anew_by_the_next_run(folder, tmp_path, make):
    for name in ("index", "data"):
        source = make(folder, Cache(tmp_path / "c", "50MB", keep="bytes"))
        cycles(source, [0])
        source.close()
        (path,) = (tmp_path / "c").glob(f"*/{name}")
        path.write_bytes(b"nonsense" if name == "index" else path.read_bytes()[:5000])
        again = make(folder, Cache(tmp_path / "c", "50MB", keep="bytes"))
        cycles(again, [0, 1])
        assert again.cached.disk == again.samples
        again.close()


def test_an_image_that_was_replaced_is_read_again(folder, tmp_path, make):
    source = make(folder, Cache(tmp_path / "cache", "50MB", keep="pixels"))
    cycles(source, [0])
    source.close()
    changed = folder / "class-0" / "000.jpg"
    status = changed.stat()
    other = jpeg(noise(60, 110, 99))[: status.st_size]
    changed.write_bytes(other.ljust(status.st_size, b"\0"))  # as long, and as old
    os.utime(changed, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert equal(cycles(source, [1]), cycles(make(folder, None), [1]))
    assert source.cached.missed == source.samples + 1


@pytest.mark.parametrize(("kind", "size"), [("bytes", "50MB"), ("pixels", PAST_THE_PAGE_CACHE)])
def test_flipped_bits_come_from_the_images_again_and_are_named(folder, tmp_path, plain, kind, size, capfd, make):
    source = make(folder, Cache(tmp_path / "cache", size, keep=kind))
    cycles(source, [0])
    (data,) = (tmp_path / "cache").glob("*/data")
    damaged = bytearray(data.read_bytes())
    for at in range(100, len(damaged), 3 * 4096):
        damaged[at] ^= 16
    data.write_bytes(damaged)  # beneath workers that have read it
    assert equal(cycles(source, [1]), plain[1])
    assert source.cached.damaged > 10
    assert "were damaged and read again" in source.description
    assert "a cached image was not what had been kept" in capfd.readouterr().err
    assert equal(cycles(source, [2]), plain[2])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kills", [4, pytest.param(300, marks=pytest.mark.soak)])
def test_workers_killed_while_they_fill_it_change_no_pixel(folder, tmp_path, plain, kind, kills):
    choose, killed, turn = random.Random(kills), 0, 0
    while killed < kills:
        source = made(folder, Cache(tmp_path / f"cache-{turn}", "50MB", memory="250KB", keep=kind))
        for cycle in (0, 1):
            found: list[np.ndarray] = []
            for block in source.open(Cursor(cycle, 0)):
                found.append(block.tree[0].copy())
                if choose.random() < 0.05:  # hardly ever thrice amid one block, which would be its fault
                    os.kill(choose.choice(source._blocks._pool._workers).pid, signal.SIGKILL)
                    killed += 1
            assert equal(found, plain[cycle])
        assert equal(cycles(source, [2]), plain[2])
        source.close()
        turn += 1


def test_a_cache_whose_folder_is_gone_changes_nothing(folder, tmp_path, plain, make):
    source = make(folder, Cache(tmp_path / "cache", "50MB", keep="bytes"))
    blocks = source.open(Cursor(0, 0))
    next(blocks)

    def is_gone() -> bool:  # at once, or workers that write into it bring it back
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        return not (tmp_path / "cache").exists()

    eventually(is_gone)
    for _ in blocks:
        pass
    assert equal(cycles(source, [1]), plain[1])
    with pytest.raises(BadSetting, match=r"give penstock.Cache\(folder, size\)"):
        made(folder, "/scratch")  # pyright: ignore[reportArgumentType]


def test_a_cache_that_is_deleted_while_it_is_read_changes_nothing(folder, tmp_path, plain, make):
    source = make(folder, Cache(tmp_path / "cache", "50MB", keep="pixels"))
    cycles(source, [0])
    for path in (tmp_path / "cache").rglob("*"):
        if path.is_file():
            path.unlink()
    assert equal(cycles(source, [1]), plain[1])
    source.close()
    assert equal(cycles(source, [2]), plain[2])


def test_a_cache_that_is_full_says_so_and_the_feed_goes_on(folder, tmp_path, plain, make):
    source = make(folder, Cache(tmp_path / "cache", "1MB", keep="pixels"))
    for cycle in range(3):
        assert equal(cycles(source, [cycle]), plain[cycle])
    assert "nothing more is kept: its 1 MB are full" in source.description
    assert 0 < source.cached.kept < source.samples


def test_nodes_keep_their_part_and_read_the_others(folder, tmp_path, make):
    names = ["a", "b", "c"]
    folders = {name: tmp_path / name for name in names}
    sources = [
        make(
            folder,
            Cache(
                folders[name],
                "50MB",
                keep="bytes",
                node=name,
                others={other: folders[other] for other in names if other != name},
            ),
            workers=1,
        )
        for name in names
    ]
    wanted = cycles(make(folder, None), [1])
    for source in sources:
        cycles(source, [0])
    kept = [source.cached.kept for source in sources]
    assert sum(kept) == sources[0].samples  # none twice, and none by nobody
    assert min(kept) > 3
    before = [source.cached.missed for source in sources]
    for source, own, missed in zip(sources, kept, before, strict=True):
        assert equal(cycles(source, [1]), wanted)
        assert source.cached.missed == missed
        assert source.cached.disk >= own
        assert source.cached.nodes >= source.samples - own


def test_it_chooses_by_what_it_measures_and_says_what_came(folder, tmp_path, plain, capfd, monkeypatch, make):
    monkeypatch.setattr("penstock.sources.images.caching.read_rate", lambda *_, **__: 1e12)
    source = make(folder, Cache(tmp_path / "cache", "50MB"))
    assert "measuring what to keep" in source.description
    for cycle in range(3):
        assert equal(cycles(source, [cycle]), plain[cycle])
    assert "the cache keeps pixels of 100% of the images" in capfd.readouterr().err
    cycles(source, [0, 1])
    assert "images/s expected, " in source.description
    assert source.cached.hits > source.samples


def test_a_users_decoder_gets_kept_bytes_and_no_kept_pixels(folder, tmp_path, make):
    with pytest.raises(BadSetting, match=r"keep=.pixels. cannot be used with decode="):
        make(folder, Cache(tmp_path / "cache", "50MB", keep="pixels"), decode=grey)
    source = make(folder, Cache(tmp_path / "cache", "50MB"), decode=grey)
    for cycle in range(2):
        assert all((block == 128).all() for block in cycles(source, [cycle]))
    assert source.cached.disk == source.samples


def grey(encoded: bytes) -> np.ndarray:
    return np.full((20, 20, 3), 128, np.uint8)


def test_a_bad_image_is_named_from_the_cache_too(folder, tmp_path, make):
    (folder / "class-2" / "bad.jpg").write_bytes(b"\xff\xd8 no image")
    os.utime(folder / "class-2" / "bad.jpg", (1, 1))
    for kind in KINDS:
        source = make(folder, Cache(tmp_path / kind, "50MB", keep=kind), on_bad="skip")
        cycles(source, [0, 1])
        assert "2 bad ones came as black images" in source.description


def test_what_was_written_just_now_is_not_kept(tmp_path, monkeypatch):
    assert SampleWriter  # the workers' own module, which reads the clock
    from penstock.sources.records import cached

    path = tmp_path / "new.jpg"
    path.write_bytes(b"x")
    place = cached.Place(str(path))
    now = path.stat().st_ctime_ns
    monkeypatch.setattr(cached, "time_ns", lambda: now + 50_000_000)
    assert cached._origin(place) == 0  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(cached, "time_ns", lambda: now + 500_000_000)
    assert cached._origin(place) != 0  # pyright: ignore[reportPrivateUsage]


def test_an_empty_file_is_bad_in_every_cycle_and_harms_no_other(folder, tmp_path, make):
    (folder / "class-0" / "000a.jpg").write_bytes(b"")
    time.sleep(0.15)
    source, plain = (
        make(folder, cache, on_bad="skip") for cache in (Cache(tmp_path / "c", "50MB", keep="bytes"), None)
    )
    for cycle in range(3):
        assert equal(cycles(source, [cycle]), cycles(plain, [cycle]))
    assert source.cached.kept == source.samples - 1


def test_what_cannot_be_decoded_is_not_kept_and_a_kept_image_that_cannot_is_read_again(folder, tmp_path, plain):
    bad = folder / "class-2" / "bad.jpg"
    bad.write_bytes(b"\xff\xd8 no image")
    time.sleep(0.15)
    source = made(folder, Cache(tmp_path / "c", "50MB", keep="bytes"), on_bad="skip")
    cycles(source, [0])
    assert source.cached.kept == source.samples - 1
    source.close()
    bad.unlink()
    # A kept copy of another file's bytes, with the version and the checksum of the image.
    (path,) = (tmp_path / "c").glob("*/index")
    slab = open_to_read(str(tmp_path / "c"), str(folder), "bytes")
    assert slab is not None
    first = slab.records[0]
    content = b"\xff\xd8 no image, either"
    slab.close()
    forged = CacheFolder(tmp_path / "c", 1 << 30).open(str(folder), "bytes")
    assert forged is not None
    forged._usable[:] = False  # pyright: ignore[reportPrivateUsage]
    assert forged.append([Item(int(first["key"]), int(first["origin"]), content)]) == 1
    forged.close()
    source = made(folder, Cache(tmp_path / "c", "50MB", keep="bytes"))
    assert equal(cycles(source, [1]), plain[1])
    source.close()
    assert path.exists()


def test_a_node_whose_folder_fails_costs_reads_alone(folder, tmp_path, make):
    a, b = (
        make(
            folder,
            Cache(tmp_path / name, "50MB", keep="bytes", node=name, others={other: tmp_path / other}),
            workers=1,
        )
        for name, other in (("a", "b"), ("b", "a"))
    )
    wanted = cycles(make(folder, None), [2])
    for source in (a, b, a):
        cycles(source, [0])
    shutil.rmtree(tmp_path / "b")
    assert equal(cycles(a, [2]), wanted)
    a.close()
    assert equal(cycles(a, [2]), wanted)  # and of a folder that is not there
