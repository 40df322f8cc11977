"""The coordinator `etcd:`: a cluster of three with faults, users, TLS, and bad input."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from coordinator.connect import connect
from coordinator.interface import CoordinatorConfigError, CoordinatorError, Lease
from tests.coordinator.etcdproxy import EtcdProxy
from tests.coordinator.etcds import Etcds, free_ports


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_cluster_without_one_member(
    tmp_path: Path, fault: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Each in turn would be the one that a call begins with: the first is."""
    monkeypatch.setattr("coordinator.etcd.SILENCE", 2)  # timeouts: 8 s until its watch connects again
    etcds = Etcds(tmp_path, 3)

    async def story() -> None:
        one = connect(f"etcd://{etcds.hosts}", timeout=4)
        lease = await one.grant(20_000)
        version = await one.swap("k", b"1", 0, lease)
        watch = one.watch("k")
        await asyncio.wait_for(anext(watch), 20)
        etcds.processes[0].send_signal(fault)
        deadline = time.monotonic() + 30
        while True:  # the others may have to elect a leader
            try:
                assert await one.keep(lease)
                break
            except CoordinatorError:
                assert time.monotonic() < deadline
        found = await one.get("k")
        assert found is not None
        assert found.version == version
        assert await one.swap("k", b"2", found.version, lease) is not None
        while (found := await one.get("k")) is None or found.value != b"2":  # noqa: ASYNC110 - a read is the condition
            await asyncio.sleep(0.1)
        await asyncio.wait_for(anext(watch), 60)
        await one.close()

    try:
        asyncio.run(story())
    finally:
        etcds.close()


def test_a_watch_whose_revision_was_compacted_meanwhile(tmp_path: Path) -> None:
    """etcd ends the watch, but leaves its connection open. The timeout is so long that no second attempt is in time."""
    etcds = Etcds(tmp_path)
    proxy = EtcdProxy(etcds.ports[0])

    def compact(revision: int | None) -> None:
        body = json.dumps({"revision": str(revision), "physical": True}).encode()
        urllib.request.urlopen(f"http://{etcds.hosts}/v3/kv/compaction", body, timeout=20).close()

    async def story() -> None:
        direct = connect(f"etcd://{etcds.hosts}", timeout=20)
        one = connect(f"etcd://127.0.0.1:{proxy.port}", timeout=20)
        watch = one.watch("k")
        async with asyncio.timeout(60):
            await anext(watch)
            version = await direct.swap("k", b"1", 0)
            await anext(watch)
            proxy.cut()
            for _ in range(3):
                version = await direct.swap("k", b"2", version or 0)
            await asyncio.to_thread(compact, version)
            proxy.closed = False
            await anext(watch)
            await direct.swap("k", b"3", version or 0)
            await anext(watch)
        watch.close()
        await one.close()
        await direct.close()

    try:
        asyncio.run(story())
    finally:
        proxy.close()
        etcds.close()


def test_a_watch_survives_an_unexpected_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    etcds = Etcds(tmp_path)
    loads = json.loads

    def fails(_: object) -> None:
        failed.set()
        raise MemoryError

    async def story() -> None:
        one = connect(f"etcd://{etcds.hosts}", timeout=10)
        with monkeypatch.context() as patch:
            patch.setattr("coordinator.etcd.json", SimpleNamespace(loads=fails))
            watch = one.watch("k")
            assert await asyncio.to_thread(failed.wait, 30)
            patch.setattr("coordinator.etcd.json", SimpleNamespace(loads=loads))
            async with asyncio.timeout(30):
                await anext(watch)
                await one.swap("k", b"1", 0)
                await anext(watch)
        await one.close()

    failed = threading.Event()
    try:
        asyncio.run(story())
    finally:
        etcds.close()
    assert {record.getMessage() for record in caplog.records if record.name == "coordinator.etcd"} == {
        "Bug in the watch of a key; it connects again: MemoryError()"
    }


def test_nobody_answers() -> None:
    async def story() -> None:
        ports = free_ports(2)
        one = connect(f"etcd://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}", timeout=2)
        began = time.monotonic()
        with pytest.raises(CoordinatorError, match=f"127.0.0.1:{ports[0]}: .*refused.*127.0.0.1:{ports[1]}: .*refused"):
            await one.swap("k", b"1", 0)
        assert time.monotonic() - began < 2
        await one.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    "answer", ['{"error": "?"}', "{}", "[]", '{"result": 1, "kvs": [{}], "succeeded": 1}', "<html>"]
)
def test_answers_of_something_else(answer: str) -> None:
    class Proxy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *_: object) -> None:
            pass

    async def story(port: int) -> None:
        one = connect(f"etcd://127.0.0.1:{port}", timeout=5)
        with pytest.raises(CoordinatorError, match="did not answer as it should"):
            await one.keep(Lease("1", 5000))
        with pytest.raises(CoordinatorError, match="did not answer as it should"):
            await one.grant(5000)
        for call in (one.get("k"), one.swap("k", b"1", 0)):
            with suppress(CoordinatorError):  # an empty answer of etcd has no fields
                assert await call is None
        await one.close()

    with HTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            asyncio.run(story(proxy.server_port))
        finally:
            proxy.shutdown()


def test_users(tmp_path: Path) -> None:
    etcds = Etcds(tmp_path)

    def post(path: str, **body: Any) -> None:
        data = json.dumps(body).encode()
        urllib.request.urlopen(f"http://{etcds.hosts}/v3/auth/{path}", data, timeout=20).close()

    async def story() -> None:
        (tmp_path / "password").write_text("s@:1\n")
        one = connect(f"etcd://root@{etcds.hosts}?password-file={tmp_path}/password", timeout=10)
        version = await one.swap("k", b"1", 0, await one.grant(20_000))
        assert version is not None
        one._token = "old"  # type: ignore[attr-defined]
        other = connect(f"etcd://root:s%40%3A1@{etcds.hosts}", timeout=10)
        assert await other.get("k") == await one.get("k")
        watch = one.watch("k")
        await asyncio.wait_for(anext(watch), 20)
        for login in ("root:wrong@", ""):
            stranger = connect(f"etcd://{login}{etcds.hosts}", timeout=10)
            with pytest.raises(CoordinatorError, match=r"authentication failed|user name is empty"):
                await stranger.get("k")
            await stranger.close()
        await one.close()
        await other.close()

    try:
        post("role/add", name="root")
        post("user/add", name="root", password="s@:1")
        post("user/grant", user="root", role="root")
        post("enable")
        asyncio.run(story())
    finally:
        etcds.close()


def test_tls(tmp_path: Path) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate = ca.issue_cert("127.0.0.1", "localhost")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    etcds = Etcds(tmp_path, tls=tmp_path)

    async def story() -> None:
        options = f"ca={tmp_path}/ca.pem&cert={tmp_path}/cert.pem&key={tmp_path}/key.pem"
        one = connect(f"etcd://{etcds.hosts}?{options}", timeout=10)
        assert await one.swap("k", b"1", 0) is not None
        watch = one.watch("k")
        await asyncio.wait_for(anext(watch), 20)
        stranger = connect(f"etcd://{etcds.hosts}?tls=yes", timeout=10)
        with pytest.raises(CoordinatorError, match="certificate verify failed"):
            await stranger.get("k")
        await stranger.close()
        await one.close()

    try:
        asyncio.run(story())
    finally:
        etcds.close()


@pytest.mark.parametrize(
    ("rest", "text"),
    [
        ("//", "'' is not a host: write etcd://host:2379"),
        ("//a,", "'' is not a host"),
        ("//a:x", "'a:x' is not a host"),
        ("//a/prefix", "has no path"),
        ("//a?user=x", "no option 'user'"),
        ("//a?ca=/nowhere", "the file '/nowhere' .ca. cannot be read"),
        ("//a?cert=/etc/passwd", "cert and key must be set together"),
        ("//a?tls=perhaps", "tls must be yes or no"),
    ],
)
def test_bad_urls(rest: str, text: str) -> None:
    with pytest.raises(CoordinatorConfigError, match=text):
        connect(f"etcd:{rest}")


def test_without_its_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "coordinator.etcd", raising=False)
    monkeypatch.setitem(sys.modules, "etcd3gw.client", None)
    with pytest.raises(CoordinatorConfigError, match=r"pip install 'tidelog\[etcd\]'"):
        connect("etcd://localhost")
