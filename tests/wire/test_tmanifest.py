"""TMANIFEST: where the history of a stream is, and which entries were deleted since."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from persistence import nodeid
from respserver.testing import start_in_thread
from storage.model.tombstones import CHUNK
from tests.wire.rawclient import Raw


def manifest(client: Raw, *words: str | int) -> dict[bytes, Any]:
    reply = client("TMANIFEST", *words)
    assert isinstance(reply, list), reply
    return dict(zip(reply[::2], reply[1::2], strict=True))


def test_the_stream_and_its_deleted_entries(tmp_path: Path) -> None:
    with start_in_thread(tier_url=str(tmp_path / "target"), dir=str(tmp_path)) as server, Raw(server.port) as client:
        ids = client.pipeline(*[("XADD", "a/b", "*", "n", "v")] * 20)
        found = manifest(client, "a/b")
        assert found[b"url"] == str(tmp_path / "target").encode()
        assert found[b"server"] in (None, nodeid.known(tmp_path).encode())
        assert found[b"folder"] == b"streams/a%2Fb"
        assert (found[b"first-ordinal"], found[b"end-ordinal"], found[b"deleted"]) == (0, 20, [])
        client("XDEL", "a/b", *ids[3:5], *ids[8:12], ids[19])
        client("XTRIM", "a/b", "MAXLEN", 12)
        found = manifest(client, "a/b")
        assert (found[b"first-ordinal"], found[b"deleted"]) == (1, [3, 5, 8, 12, 19, 20])
        assert (found[b"end-ordinal"], found[b"deleted-until"]) == (20, 20)
        found = manifest(client, "a/b", "RANGE", 4, 10)
        assert (found[b"deleted"], found[b"deleted-until"]) == ([4, 5, 8, 10], 10)
        assert manifest(client, "a/b", "RANGE", 30, 2)[b"deleted"] == []
        sid = found[b"sid"]
        client("RENAME", "a/b", "c")
        assert manifest(client, "c")[b"sid"] == sid
        client("XADD", "a/b", "*", "n", "v")
        assert manifest(client, "a/b")[b"sid"] > sid
        client("FLUSHALL")
        client("XADD", "c", "*", "n", "v")
        assert manifest(client, "c")[b"sid"] > sid + 1
        sid = manifest(client, "c")[b"sid"]
        client("FLUSHALL")
        client("SAVE")
    with start_in_thread(dir=str(tmp_path)) as server, Raw(server.port) as client:
        client("XADD", "c", "*", "n", "v")
        assert manifest(client, "c")[b"sid"] > sid


def test_many_deleted_entries_take_several_calls() -> None:
    with start_in_thread() as server, Raw(server.port) as client:
        for start in range(0, 11 * CHUNK, CHUNK):
            client("XADD", "a", f"{start + 1}-0", "n", "v")
            client.pipeline(*[("XADD", "a", f"{start + number}-0", "n", "v") for number in range(2, CHUNK + 1)])
        client("XDEL", "a", *[f"{number}-0" for number in range(2, 11 * CHUNK, CHUNK)])
        found = manifest(client, "a")
        assert (found[b"url"], found[b"server"]) == (None, None)
        assert found[b"deleted"] == [end for at in range(1, 8 * CHUNK, CHUNK) for end in (at, at + 1)]
        assert found[b"deleted-until"] == 8 * CHUNK
        rest = manifest(client, "a", "RANGE", 8 * CHUNK, 11 * CHUNK)
        assert (len(rest[b"deleted"]), rest[b"deleted-until"]) == (6, 11 * CHUNK)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("nokey",), "ERR no such key"),
        (("a", "RANGE"), "ERR syntax error"),
        (("a", "RANGE", "0"), "ERR syntax error"),
        (("a", "PAGE", "0", "1"), "ERR syntax error"),
        (("a", "RANGE", "-1", "1"), "ERR value is out of range, must be positive"),
        (("a", "RANGE", "0", "x"), "ERR value is not an integer or out of range"),
        (("text",), "WRONGTYPE Operation against a key holding the wrong kind of value"),
    ],
)
def test_errors(words: tuple[str, ...], error: str) -> None:
    with start_in_thread() as server, Raw(server.port) as client:
        client("XADD", "a", "*", "n", "v")
        client("SET", "text", "v")
        assert str(client("TMANIFEST", *words)) == error
