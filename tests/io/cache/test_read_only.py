"""A cache on a mount that may only be read is read."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.sources.images.pictures import textures

MOUNT = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0"'
PROGRAM = """
import errno, os, sys
import numpy as np
import penstock

folder, images, tokens = sys.argv[1:]
if "read-only" in os.environ:
    try:
        os.utime(folder)
        sys.exit("the mount is written to")
    except OSError as error:
        assert error.errno == errno.EROFS, error
for keep in ("bytes", "pixels"):
    cache = penstock.Cache(folder, "50MB", keep=keep)
    source = penstock.ImageSource(images, size=8, workers=1, batch_size=8, cache=cache)
    assert sum(len(images) for images, _ in source) == 12
    print(keep, source.cached.disk, source.cached.missed)
    source.close()
source = penstock.TokenSource(tokens, length=16, cache=penstock.Cache(folder, "50MB"))
print("tokens", sum(int(rows.sum()) for rows in source))
"""


def read_only(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command for which a folder is mounted read-only."""
    words = ["unshare", "-rm", "sh", "-c", f'{MOUNT} && shift && exec "$@"', folder, "", *command]
    return subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, env={"read-only": "1"})


@pytest.mark.whole
def test_a_cache_on_a_read_only_mount_is_read(tmp_path: Path) -> None:
    cache, images, tokens = (tmp_path / name for name in ("cache", "images", "tokens.bin"))
    cache.mkdir()
    if probed := read_only("true", folder=cache).stderr:
        pytest.skip(f"this process may not mount: {probed}")
    textures(images, 12)
    np.arange(1000, dtype=np.uint16).tofile(tokens)
    time.sleep(0.15)  # files that were written just now are not kept
    program = [sys.executable, "-c", PROGRAM, cache, images, tokens]
    first = subprocess.run([*map(str, program)], capture_output=True, text=True, check=False)
    assert first.stdout.split() == ["bytes", "0", "12", "pixels", "0", "12", "tokens", first.stdout.split()[-1]]
    again = read_only(*program, folder=cache)
    assert again.stderr == ""
    assert again.stdout.split() == ["bytes", "12", "0", "pixels", "12", "0", "tokens", first.stdout.split()[-1]]
    told = read_only(sys.executable, "-m", "penstock", "cache", "check", cache, folder=cache)
    assert told.returncode == 0, told.stdout + told.stderr
