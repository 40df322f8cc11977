"""A full disk: writes are refused with MISCONF, reads go on, nothing acknowledged is lost, and with room writes go on.

The disk is "full" for a server process whose files may not grow (RLIMIT_FSIZE, set from outside while it runs).
"""

from __future__ import annotations

import resource
import time

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tidelog.testing import Server, running_server

MB = 1 << 20


def connection(server: Server) -> redis.Redis:
    return redis.Redis(port=server.port, socket_timeout=30, retry=Retry(NoBackoff(), 0))


def limit_files(server: Server, size: int) -> None:
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def fill(client: redis.Redis, acknowledged: list[bytes], until: float, size: int = 20_000) -> str:
    """Append entries of so many bytes, ten at once, until the server refuses; returns the error."""
    body = b"x" * size
    while time.monotonic() < until:
        pipe = client.pipeline(transaction=False)
        for _ in range(10):
            pipe.execute_command("TAPPEND", "s", "pad", body)
        for reply in pipe.execute(raise_on_error=False):
            if isinstance(reply, redis.ResponseError):
                return str(reply)
            acknowledged.append(reply)
    raise AssertionError("the disk never became full")


def writes_again(client: redis.Redis, acknowledged: list[bytes]) -> None:
    """Append as soon as the server takes it: until then it says MISCONF."""
    deadline = time.monotonic() + 30
    while True:
        (reply,) = client.pipeline(transaction=False).execute_command("TAPPEND", "s", "after", "all").execute(False)
        if not isinstance(reply, redis.ResponseError):
            acknowledged.append(reply)
            return
        assert str(reply).startswith("MISCONF"), reply
        assert time.monotonic() < deadline, f"room doesn't help: {reply}"


@pytest.mark.parametrize("fsync", ["always", "everysec"])
def test_journal_without_room(fsync: str) -> None:
    with running_server(appendfsync=fsync, wal_size="1mb", checkpoint_size="1gb", save="") as server:
        acknowledged: list[bytes] = []
        with connection(server) as client:
            limit_files(server, 3 * MB)
            # under everysec large batches are in many files, and no file is as large as the limit
            error = fill(client, acknowledged, time.monotonic() + 30, size=20_000 if fsync == "always" else 700)
            assert error.startswith("MISCONF"), error
            # reads are alive, and see all that was acknowledged
            assert client.ping()
            assert [row[0] for row in client.execute_command("TRANGE", "s", "-", "+")] == acknowledged
            with pytest.raises(redis.ResponseError, match="MISCONF"):
                client.set("k", "v")
            with pytest.raises(redis.ResponseError, match="MISCONF"):
                client.execute_command("TREAD", "s", "0", 1, "GROUP", "g", 0)
            assert len(client.execute_command("TREAD", "s", "0", 5)) == 5
            assert client.info("persistence")["aof_last_write_status"] == "err"
            limit_files(server, resource.RLIM_INFINITY)
            writes_again(client, acknowledged)
            assert client.info("persistence")["aof_last_write_status"] == "ok"
        server.kill()
        server.start()
        with connection(server) as client:
            assert [row[0] for row in client.execute_command("TRANGE", "s", "-", "+")] == acknowledged


def test_killed_while_the_disk_is_full() -> None:
    with running_server(wal_size="1mb", checkpoint_size="1gb", save="") as server:
        acknowledged: list[bytes] = []
        with connection(server) as client:
            limit_files(server, 3 * MB)
            fill(client, acknowledged, time.monotonic() + 30)
        server.kill()
        server.start()  # with room again
        with connection(server) as client:
            assert [row[0] for row in client.execute_command("TRANGE", "s", "-", "+")] == acknowledged
            writes_again(client, acknowledged)


def test_checkpoint_without_room() -> None:
    with running_server(wal_size="1mb", checkpoint_size="1gb", save="") as server, connection(server) as client:
        acknowledged: list[bytes] = []
        blob = [str(i) * 2000 for i in range(100)]
        for _ in range(5):
            client.execute_command("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *blob)
        digest_before = client.execute_command("TLEN", "s")
        limit_files(server, 40_000)
        with pytest.raises(redis.ResponseError, match="checkpoint failed"):
            client.save()
        with pytest.raises(redis.ResponseError, match="MISCONF"):
            client.execute_command("TAPPEND", "s", "f", "v")
        assert client.execute_command("TLEN", "s") == digest_before
        limit_files(server, resource.RLIM_INFINITY)
        assert client.save()
        writes_again(client, acknowledged)
        server.kill()
        server.start()
        assert client.execute_command("TLEN", "s") == digest_before + 1
