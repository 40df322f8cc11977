"""An S3-compatible server in this process: moto's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def s3_bucket() -> Iterator[str]:
    """A bucket's URL. The environment of this process, and of those that it starts, leads there meanwhile."""
    pytest.importorskip("s3fs", reason="no s3fs here (pip install -e '.[test]')")
    server = pytest.importorskip("moto.server", reason="no moto here (pip install -e '.[test]')")
    import s3fs

    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()  # of another test's server
        s3fs.S3FileSystem().makedirs("bucket", exist_ok=True)  # moto has one memory for all servers
        yield "s3://bucket"
        running.stop()
