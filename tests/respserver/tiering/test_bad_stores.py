"""Object stores that refuse, lose, or change what the server needs: the message, the remedy, and that nothing is lost.

``test_errors`` has directories that can't be written, and ``test_freeing`` those that are away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from select import select

import pytest

from persistence.tiering.objectstore import HistoryStore
from respserver.testing import start_in_thread
from respserver.tiering import historyreads
from tests.persistence.tiering.kit import Entry, History
from tests.respserver.tiering.s3proxy import TEXTS, S3Proxy, s3_proxy
from tests.respserver.tiering.test_freeing import COUNT, FREED, add, empty_cache, thread_options, wait_until_freed
from tests.respserver.tiering.test_tiering import NODE, await_copy, fields, tiered
from tests.waiting import eventually
from tests.wire.rawclient import Raw

RENEW = "Renew the credentials, or permit the call. The next attempt reads the credentials again"


def writes_continue(client: Raw) -> None:
    before = client("XLEN", "w")
    assert not isinstance(client("XADD", "w", "*", "f", "v"), str)
    assert client("XLEN", "w") == before + 1


def reads_again(client: Raw, entries: list[Entry]) -> None:
    eventually(lambda: client("XRANGE", "a", "-", "+") == entries, "the entries can't be read")


def credentials(path: Path, key: str) -> None:
    """Replace the file with the credentials, as a program that renews them does."""
    new = path.with_suffix(".new")
    new.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = b\n")
    new.rename(path)


def test_credentials_that_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies and the reads continue with new ones, without a restart."""
    file = tmp_path / "credentials"
    credentials(file, "first")

    def refusal(headers: Message) -> str:
        return "" if "Credential=second/" in headers.get("Authorization", "") else "ExpiredToken"

    with s3_proxy() as (proxy, bucket):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
        url = f"{bucket}/{tmp_path.name}"
        with tiered(url, tier_free="yes", save="", node_cache_size="0") as server, Raw(server.port) as client:
            entries = add(client, COUNT)
            wait_until_freed(client, FREED)
            reads_again(client, entries)
            proxy.refusal = refusal
            empty_cache(server)
            error = str(client("XRANGE", "a", "5-0", "5-0"))
            assert error.startswith("TRYAGAIN ")
            assert "which can't be read: can't read objects/" in error
            assert error.endswith(f"{TEXTS['ExpiredToken']} {RENEW}. Repeat the command later.")
            eventually(lambda: fields(client)["tier_last_status"] == "err")
            assert fields(client)["tier_last_error"].endswith(f"{TEXTS['ExpiredToken']} {RENEW}")
            assert fields(client)["tier_lost_objects"] == "0"
            writes_continue(client)
            credentials(file, "second")
            reads_again(client, entries)
            more = add(client, 4 * NODE, first=1001)
            await_copy(HistoryStore(url, 60, lambda: None), more)
            eventually(lambda: fields(client)["tier_last_status"] == "ok")
            eventually(lambda: fields(client)["tier_read_error"] == "")
        assert proxy.refused > 1


@contextmanager
def silent(proxy: S3Proxy) -> Iterator[None]:
    proxy.answers.clear()
    try:
        yield
    finally:
        proxy.answers.set()


def test_a_store_that_is_stopped(tmp_path: Path) -> None:
    """It accepts connections and requests, and is silent. Reads and copies fail after ``tier-timeout``. Other commands
    are served meanwhile, and everything continues when it answers again."""
    with s3_proxy() as (proxy, bucket):
        url = f"{bucket}/{tmp_path.name}"
        with (
            tiered(url, tier_free="yes", save="", node_cache_size="0", tier_timeout=10) as server,
            Raw(server.port) as client, Raw(server.port) as other,
        ):  # fmt: skip
            entries = add(client, COUNT)
            wait_until_freed(client, FREED)
            with silent(proxy):
                empty_cache(server)
                before = proxy.silent
                client.send("XRANGE", "a", "-", "+")
                more = add(other, 4 * NODE, first=1001, key="b")
                eventually(lambda: proxy.silent > before, "no request to the store")
                while not select([client.sock], [], [], 0)[0]:
                    assert other("PING") == b"PONG"
                    writes_continue(other)
                error = str(client.read())
                assert error.startswith("TRYAGAIN ")
                assert "no answer within 10 s" in error
                eventually(lambda: fields(other)["tier_last_status"] == "err")
                assert "no answer within 10 s" in fields(other)["tier_last_error"]
            reads_again(client, entries)
            await_copy(HistoryStore(url, 60, lambda: None), more, b"b")
            eventually(lambda: fields(client)["tier_last_status"] == "ok")
            assert fields(client)["tier_lost_objects"] == "0"


def test_a_clock_that_differs_too_much(tmp_path: Path) -> None:
    with s3_proxy() as (proxy, bucket):
        url = f"{bucket}/{tmp_path.name}"
        proxy.refusal = lambda _headers: "RequestTimeTooSkewed"
        with tiered(url) as server, Raw(server.port) as client:
            eventually(lambda: fields(client)["tier_last_status"] == "err")
            assert fields(client)["tier_last_error"].endswith(
                f"{TEXTS['RequestTimeTooSkewed']} Correct the clock of this machine, or that of the object store"
            )
            writes_continue(client)
            entries = add(client, 5 * NODE)
            proxy.refusal = lambda _headers: ""
            await_copy(HistoryStore(url, 60, lambda: None), entries)
            eventually(lambda: fields(client)["tier_last_status"] == "ok")


@pytest.mark.parametrize("year", [1999, 2099])
def test_the_times_of_the_object_store_have_no_effect(tmp_path: Path, year: int) -> None:
    """An object is deleted ``tier-grace`` after its removal by the server's clock, whenever it was written."""
    time = f"Fri, 01 Jan {year} 00:00:00 GMT"
    with s3_proxy() as (proxy, bucket):
        proxy.headers = {"Date": time, "Last-Modified": time}
        proxy.change = lambda path, body: _dated(body, year)
        url = f"{bucket}/{tmp_path.name}"
        objects = HistoryStore(url, 60, lambda: None)
        with tiered(url, tier_grace=3600, save="") as server, Raw(server.port) as client:
            await_copy(objects, add(client, 5 * NODE))
            names = objects.names("objects")
            assert client("DEL", "a") == 1
            assert client("SAVE") == b"OK"
            eventually(lambda: int(fields(client)["tier_waiting_objects"]) == len(names))
            passes = int(fields(client)["tier_passes"])
            eventually(lambda: int(fields(client)["tier_passes"]) > passes + 1)
            assert sorted(objects.names("objects")) == sorted(names)
            assert client("CONFIG", "SET", "tier-grace", 0) == b"OK"
            eventually(lambda: objects.names("objects") == [])
            assert fields(client)["tier_deletion_error"] == ""


def _dated(body: bytes, year: int) -> bytes:
    """Change the times in a listing."""
    parts = body.split(b"<LastModified>")
    return b"<LastModified>".join([parts[0], *[b"%04d%b" % (year, part[4:]) for part in parts[1:]]])


def test_a_bucket_that_returns_other_bytes_at_the_start(tmp_path: Path) -> None:
    with s3_proxy() as (proxy, bucket):
        proxy.change = lambda path, body: body[:-1] + b"#" if "/check-" in path else body
        url = f"{bucket}/{tmp_path.name}"
        with tiered(url) as server, Raw(server.port) as client:
            entries = add(client, 3 * NODE)
            eventually(lambda: fields(client)["tier_last_status"] == "err")
            error = fields(client)["tier_last_error"]
            assert error.startswith("the object store does not return what was written to it: check-")
            assert error.endswith("Check what is between this server and the object store, such as a proxy, or use"
                                  " another prefix")  # fmt: skip
            writes_continue(client)
            assert HistoryStore(url, 60, lambda: None).names("objects") == []
            proxy.change = lambda _path, body: body
            await_copy(HistoryStore(url, 60, lambda: None), entries)


@pytest.mark.parametrize("damage", ["changed", "truncated", "missing"])
def test_an_object_that_is_lost(tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """INFO has it until it is restored, also if no command reads it again. Other parts of it can be read."""
    monkeypatch.setattr(historyreads, "AGAIN_MS", 200)
    target, cache = tmp_path / "target", tmp_path / "data" / "tier-cache"
    with start_in_thread(tmp_path / "data", **thread_options(target)) as server, Raw(server.port) as client:
        entries = add(client, COUNT, size=12_000)
        wait_until_freed(client, FREED)
        assert fields(client)["tier_lost_objects"] == "0"
        path = min((target / "objects").iterdir(), key=lambda one: one.stat().st_mtime_ns)
        content = path.read_bytes()
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(content[:5000] if damage == "truncated" else content[:200] + b"damage" + content[206:])
        for file in cache.glob("*"):
            file.unlink(missing_ok=True)
        error = str(client("XRANGE", "a", "5-0", "5-0"))
        assert f"objects/{path.name}" in error
        assert error.endswith(
            "Restore the object, such as from a version of the bucket, or run tidelog history repair --read."
        )
        assert fields(client)["tier_lost_objects"] == "1"
        assert f"objects/{path.name}" in fields(client)["tier_read_error"]
        writes_continue(client)
        if damage == "changed":
            assert client("XRANGE", "a", "150-0", "150-0") == [entries[149]], "another section of the object"
        path.write_bytes(content)
        eventually(lambda: fields(client)["tier_lost_objects"] == "0", "it was not read again")
        reads_again(client, entries)
        assert fields(client)["tier_read_error"] == ""


def test_no_value_copies_the_active_node(tmp_path: Path) -> None:
    with tiered(tmp_path, save="") as server, Raw(server.port) as client:
        client.pipeline(*[("XADD", "a", "*", "n", number) for number in range(NODE - 1)])
        for value in ("0", "1b"):
            assert client("CONFIG", "SET", "tier-after", value) == b"OK"
            for setting in (("AGE", 0), ("BYTES", 0), ("DEFAULT",)):
                assert client("TCFG", "a", "TIER", *setting) == b"OK"
                assert client("SAVE") == b"OK"
                passes = int(fields(client)["tier_passes"])
                eventually(lambda: int(fields(client)["tier_passes"]) > passes + 1)  # noqa: B023
        assert (fields(client)["tier_entries"], History(tmp_path).manifest(b"a")) == ("0", None)
        for value in ("-1", "-1b", "1x"):
            assert str(client("CONFIG", "SET", "tier-after", value)).startswith("ERR ")

