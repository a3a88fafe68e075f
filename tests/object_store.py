"""A local S3 server for tests."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.sources.records.files import stores

SERVER = Path(__file__).parent / "io" / "moto_store.py"


@contextmanager
def serving(errors: Path) -> Iterator[str]:
    """Run one, to which the environment points; give its address."""
    with errors.open("w") as file:
        server = subprocess.Popen(
            [sys.executable, str(SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            bufsize=1,
        )
    with pytest.MonkeyPatch.context() as patch:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        assert url, errors.read_text()
        set_environment(patch, url)
        with urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT")):
            pass
        stores.cache_clear()  # which knows the server of other tests
        yield url
    server.communicate()


def set_environment(patch: pytest.MonkeyPatch, place: str) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        patch.delenv(name)
    patch.setenv("AWS_ENDPOINT_URL", place)
    patch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    patch.setenv("AWS_REGION", "us-east-1")


def put(key: str, content: bytes) -> str:
    """Store an object in the bucket of the S3 server; gives its path."""
    import obstore
    from obstore.store import S3Store

    obstore.put(S3Store("bucket", client_options={"allow_http": True}), key, content)
    return f"s3://bucket/{key}"
