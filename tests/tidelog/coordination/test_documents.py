"""Documents on a real server: no change is lost, whoever else changes them, and whatever happens to a reply."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable

import msgspec
import pytest
import redis

from tests.tidelog.coordination.leasekit import losing
from tidelog.client import calls
from tidelog.client.client import Client
from tidelog.client.steps import run
from tidelog.coordination.documents import VersionedDocument, change
from tidelog.testing import Server

KEY = "doc"
Edit = Callable[[bytes | None], tuple[bytes | None, int]]


def counted(text: bytes | None) -> tuple[bytes | None, int]:
    """One more than there was."""
    number = int(text or b"0") + 1
    return b"%d" % number, number


def interfered(client: Client, edit: Edit, *there: bytes | None) -> tuple[Edit, list[bytes | None]]:
    """``edit``, while others write these values: one after each time that the document was read; and what it saw."""
    left, seen = list(there), list[bytes | None]()

    def edited(text: bytes | None) -> tuple[bytes | None, int]:
        seen.append(text)
        if left:
            value = left.pop(0)
            client.redis.delete(KEY) if value is None else client.redis.set(KEY, value)
        return edit(text)

    return edited, seen


def test_a_document_is_created_changed_and_deleted(client: Client) -> None:
    assert run(client, change(KEY, counted)) == 1
    assert run(client, change(KEY, counted)) == 2
    assert client.redis.get(KEY) == b"2"
    assert run(client, change(KEY, lambda text: (None, text))) == b"2"
    assert client.redis.exists(KEY) == 0
    assert run(client, change(KEY, lambda text: (None, text))) is None


def test_nothing_is_written_if_nothing_changes(client: Client) -> None:
    client.redis.set(KEY, "5")
    client.redis.expire(KEY, 100)  # a SET would remove this
    assert run(client, change(KEY, lambda text: (text, 7), [calls.tappend("log", {"n": 1})])) == 7
    assert client.redis.ttl(KEY) > 0
    assert client.tlen("log") == 0


@pytest.mark.parametrize(
    ("before", "meanwhile", "seen"),
    [
        (None, b"10", [None, b"10"]),  # created by another
        (b"1", b"10", [b"1", b"10"]),  # changed
        (b"1", None, [b"1", None]),  # deleted
        (b"1", b"1", [b"1"]),  # written again: the same bytes
    ],
)
def test_a_change_by_another_is_seen(
    client: Client, before: bytes | None, meanwhile: bytes | None, seen: list[bytes | None]
) -> None:
    if before is not None:
        client.redis.set(KEY, before)
    edit, found = interfered(client, counted, meanwhile)
    assert run(client, change(KEY, edit)) == int(seen[-1] or b"0") + 1
    assert found == seen
    assert client.redis.get(KEY) == b"%d" % (int(seen[-1] or b"0") + 1)


@pytest.mark.parametrize(("meanwhile", "left"), [(b"2", b"2"), (None, None)])
def test_a_deletion_is_of_what_was_seen(client: Client, meanwhile: bytes | None, left: bytes | None) -> None:
    """It deletes 1, and leaves what another has made of it."""
    client.redis.set(KEY, "1")
    edit, _ = interfered(client, lambda text: (None if text == b"1" else text, 0), meanwhile)
    run(client, change(KEY, edit))
    assert client.redis.get(KEY) == left


@pytest.mark.parametrize("before", [None, b"1"])
def test_a_lost_reply_leaves_one_change(client: Client, before: bytes | None) -> None:
    """A caller repeats an operation as a whole. An edit that is absolute is then made once."""
    if before is not None:
        client.redis.set(KEY, before)
    with pytest.raises(redis.ConnectionError):
        losing(client, change(KEY, lambda _: (b"9", 0)), 1)
    assert client.redis.get(KEY) == b"9"
    assert run(client, change(KEY, lambda text: (b"9", 5 if text == b"9" else 0))) == 5


def test_what_another_has_written_alike_counts_as_done(client: Client) -> None:
    """As after a lost reply that the connection has repeated: Rule 3."""
    edit, seen = interfered(client, lambda _: (b"9", 0), b"9")
    run(client, change(KEY, edit))
    assert seen == [None]


def test_also_is_sent_with_each_attempt(client: Client) -> None:
    edit, _ = interfered(client, counted, b"10", b"20")
    assert run(client, change(KEY, edit, [calls.tappend("log", {"n": 1})])) == 21
    assert client.tlen("log") == 3


def test_another_type_is_an_error(client: Client) -> None:
    client.tappend(KEY, {"n": 1})
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        run(client, change(KEY, counted))
    assert client.tlen(KEY) == 1


def test_many_threads_lose_no_change(tidelog_server: Server) -> None:
    """Each adds names of its own: two changes with the same result would count as one (Rule 3)."""

    def work(thread: int) -> None:
        with tidelog_server.client() as client:
            for number in range(50):
                name = f"{thread}.{number}"

                def added(text: bytes | None, name: str = name) -> tuple[bytes, None]:
                    return (text or b"") + f"{name} ".encode(), None

                run(client, change(KEY, added))

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with tidelog_server.client() as client:
        found = str(client.redis.get(KEY), "ascii").split()  # type: ignore[arg-type] # bytes
    assert sorted(found) == sorted(f"{thread}.{number}" for thread in range(4) for number in range(50))


class Settings(msgspec.Struct):
    name: str = "none"
    version: int = 3


def document() -> VersionedDocument[Settings]:
    return VersionedDocument(Settings, 3, LookupError, logging.getLogger("tidelog.test"))


def decoded(value: object) -> Settings:
    return document().decoded(KEY, value if isinstance(value, bytes) else json.dumps(value).encode())


def test_versions_of_a_document(caplog: pytest.LogCaptureFixture) -> None:
    assert decoded({"name": "a", "version": 3, "later": 1}) == Settings("a")
    assert not caplog.records
    with pytest.raises(LookupError, match="has version 4, this program supports 3"):
        decoded({"title": "a", "version": 4})
    unreadable: list[object] = [
        {"name": "a", "version": 2},
        {"name": 7, "version": 3},
        {"name": "a"},
        [],
        b"{",
        b"\xff",
        b"[" * 100_000,
    ]
    for value in unreadable:
        caplog.clear()
        assert decoded(value) == Settings("none")
        assert KEY in caplog.text


def test_a_versioned_document_is_read_and_changed(client: Client) -> None:
    settings = document()
    assert run(client, settings.read(KEY)) == Settings("none")
    assert run(client, settings.change(KEY, lambda there: there)) == Settings("none")
    assert client.redis.get(KEY) is None  # nothing has changed
    assert run(client, settings.change(KEY, lambda _: Settings("a"))) == Settings("a")
    assert run(client, settings.read(KEY)) == Settings("a")
    client.redis.set(KEY, "{")  # ignored, and replaced by the next change
    assert run(client, settings.change(KEY, lambda there: Settings(there.name + "b"))) == Settings("noneb")
    client.redis.set(KEY, '{"version": 4}')
    with pytest.raises(LookupError, match="too old"):
        run(client, settings.change(KEY, lambda _: Settings("c")))
    assert client.redis.get(KEY) == b'{"version": 4}'
