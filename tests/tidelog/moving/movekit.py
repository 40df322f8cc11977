"""Two servers to move between, what is put there, and what is there: for tests of moving."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from tidelog.cli.program import main
from tidelog.testing import free_port

SECONDS = 30.0  # a condition that is not met by then is a failure


class Peer:
    """A redis-server of this test's own."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.port = port
        self.process = process
        self.url = f"redis://127.0.0.1:{port}"
        self.client: Any = redis.Redis(port=port, protocol=2)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@contextmanager
def running_redis(directory: Path, *options: str, port: int = 0) -> Iterator[Peer]:
    """A redis-server without persistence on a free port. Its process is known to be the one that answers there."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server here to move from (Debian: apt-get install redis-server)")
    for _ in range(5):  # somebody else may take the port before redis-server does
        at = port or free_port()
        command = [program, "--port", str(at), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        command += ["--dir", str(directory), *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            if _is_its(at, process):
                peer = Peer(at, process)
                try:
                    yield peer
                finally:
                    peer.client.close()
                return
        finally:
            process.kill()
            process.wait(10)
    pytest.fail("redis-server did not start")


def _is_its(port: int, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as sock:
                sock.sendall(b"INFO server\r\n")
                answer = sock.recv(65536)
                if b"process_id:%d\r\n" % process.pid in answer or answer.startswith(b"-NOAUTH"):
                    return True
        except OSError:
            pass
    return False


# -- the program ---------------------------------------------------------------------------------------------
def tidelog(*words: object, code: int = 0) -> Result:
    """The program in this process; it must end with this exit code."""
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code == code, result.output
    return result


def moved(source: str, target: str, *words: object, code: int = 0) -> dict[str, Any]:
    """The report of an import."""
    result = tidelog("import", source, "--url", target, "--json", *words, code=code)
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def start(*words: object) -> subprocess.Popen[bytes]:
    """The program as a process of its own."""
    command = [sys.executable, "-m", "tidelog.cli", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


# -- what is there -------------------------------------------------------------------------------------------
def fill(client: Any) -> None:
    """Streams of every kind, with groups, and strings."""
    ask = client.execute_command
    for n in range(1, 31):
        ask("XADD", "orders", f"{n}-{n % 3}", "n", n, "tag", "a", "tag", b"\xff\x00\r\n")
    ask("XGROUP", "CREATE", "orders", "workers", "0")
    ask("XGROUP", "CREATE", "orders", "others", "12-0", "ENTRIESREAD", "12")
    ask("XGROUP", "CREATE", "orders", "ahead", "500-1")
    ask("XREADGROUP", "GROUP", "workers", "ann", "COUNT", "9", "STREAMS", "orders", ">")
    ask("XREADGROUP", "GROUP", "workers", b"b\xffb", "COUNT", "6", "STREAMS", "orders", ">")
    ask("XACK", "orders", "workers", "2-2", "10-1")
    ask("XCLAIM", "orders", "workers", "cid", "0", "3-0", "4-1", "TIME", "1700000000000", "RETRYCOUNT", "7")
    ask("XGROUP", "CREATECONSUMER", "orders", "others", "idle")
    ask("XDEL", "orders", "20-2", "25-1")
    ask("XADD", "trimmed", "MAXLEN", "2", "7-7", "a", "1")
    for n in range(8, 15):
        ask("XADD", "trimmed", "MAXLEN", "2", f"{n}-0", "a", n)
    ask("XSETID", "trimmed", "900-9", "ENTRIESADDED", "77", "MAXDELETEDID", "5-5")
    ask("PEXPIREAT", "trimmed", 4_000_000_000_000)
    ask("XADD", "emptied", "5-0", "a", "1")
    ask("XDEL", "emptied", "5-0")
    ask("XGROUP", "CREATE", "made", "waiting", "$", "MKSTREAM")
    ask("XGROUP", "CREATE", "bare", "waiting", "$", "MKSTREAM")
    ask("XGROUP", "DESTROY", "bare", "waiting")
    ask("SET", "lock", b"\x00\xff", "PXAT", 4_000_000_000_123)
    ask("SET", "counter", "41")
    ask("SET", "nothing", "")


STREAMS = ["bare", "emptied", "made", "orders", "trimmed"]


def state(client: Any, key: str) -> dict[str, Any]:
    """All that can be asked of a stream, without times: when consumers were seen is not carried over."""
    told = pairs(raw(client, "XINFO", "STREAM", key, "FULL", "COUNT", 0))
    groups = {}
    for row in told["groups"]:
        group = pairs(row)
        consumers = {each["name"]: each["pel-count"] for each in map(pairs, group["consumers"])}
        pending = sorted((at, owner, count) for at, owner, _, count in group["pending"])
        kept = {name: group.get(name) for name in ("last-delivered-id", "entries-read", "pel-count")}
        groups[group["name"]] = kept | {"pending": pending, "consumers": consumers}
    names = ("length", "last-generated-id", "max-deleted-entry-id", "entries-added", "entries")
    rest = {"groups": groups, "expires": raw(client, "PEXPIRETIME", key)}
    return {name: told[name] for name in names} | rest


def delivered(client: Any, key: str) -> dict[tuple[bytes, bytes], int]:
    """When pending messages were delivered, by group and ID, in ms."""
    told = pairs(raw(client, "XINFO", "STREAM", key, "FULL", "COUNT", 0))
    return {
        (group["name"], at): time for group in map(pairs, told["groups"]) for at, _, time, _ in group["pending"]
    }  # fmt: skip


def raw(client: Any, *command: object) -> Any:
    """A reply in RESP2, as it is."""
    connection = client.connection_pool.get_connection()
    try:
        connection.send_command(*command)
        return connection.read_response(disable_decoding=True)
    finally:
        client.connection_pool.release(connection)


def pairs(row: list[Any]) -> dict[str, Any]:
    return {name.decode(): value for name, value in zip(row[::2], row[1::2], strict=True)}
