"""A pipe, a socket or a device in place of a file is an error that names it: nothing waits for it or stays."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from tests.sources.images.pictures import encoded, noise
from tests.support.no_files import NO_FILES

import penstock
from penstock.errors import BadSetting, PenstockError, ReadFailed, SourceError


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_among_images_it_is_a_bad_image(tmp_path, kind):
    for i in range(3):
        (tmp_path / f"{i}.png").write_bytes(encoded(noise(20, 20), ".png"))
    NO_FILES[kind](tmp_path / "x.png")
    options = {"size": 16, "batch_size": 4, "workers": 1, "shuffle": False}
    with (
        closing(penstock.ImageSource(tmp_path, **options)) as source,
        pytest.raises(SourceError, match=r"x\.png cannot be read: (it is a .*, no file|No such device)"),
    ):
        list(source)
    labels = [0, 1, 2, 3]
    with closing(penstock.ImageSource(tmp_path, on_bad="skip", labels=labels, **options)) as source:
        ((images, found),) = source
    assert found.tolist() == [0, 1, 2, -100] and [bool(image.any()) for image in images] == [True] * 3 + [False]


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder"])
@pytest.mark.parametrize("name", ["x.tar", "x.parquet", "x.arrow", "index.json"])
def test_in_place_of_samples_it_is_refused(tmp_path, kind, name):
    NO_FILES[kind](tmp_path / name)
    data = f"mds:{tmp_path}" if name == "index.json" else str(tmp_path / name)
    with pytest.raises(
        (BadSetting, ReadFailed), match=rf"({name}|/dev/zero) cannot be read: it is a \w+( device)?, no file"
    ):
        penstock.RecordSource(data)


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder"])
def test_in_place_of_tokens_it_is_refused(tmp_path, kind):
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "a.bin")
    NO_FILES[kind](tmp_path / "b.bin")
    with pytest.raises(PenstockError, match=r"b\.bin"):
        penstock.TokenSource(tmp_path / "*.bin", length=8)
