"""Streams that are renamed, and get their first name back, while their entries are only in the object store."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.persistence.tiering.kit import History
from tests.respserver.tiering.test_freeing import COUNT, FREED, add, empty_cache, freed, wait_until_freed
from tests.respserver.tiering.test_tiering import NODE, fields, helpers, tiered
from tests.waiting import eventually
from tests.wire.rawclient import Raw
from tidelog.testing import Server


def passes(client: Raw, more: int = 2) -> None:
    """Wait until passes that begin now have ended, without an error."""
    before = int(fields(client)["tier_passes"])
    eventually(
        lambda: int(fields(client)["tier_passes"]) > before + more, f"no passes: {fields(client)['tier_last_error']}"
    )  # fmt: skip
    found = fields(client)
    assert (found["tier_last_error"], found["tier_deletion_error"]) == ("", "")


def names(target: Path) -> set[str]:
    return {path.name for path in (target / "objects").iterdir()}


def examine_again(server: Server) -> None:
    """Kill the helper. The next one examines files that were needed when it first saw them, without waiting an hour."""
    for pid in helpers(server, b"tiering.helper"):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("between", [0, 5 * NODE], ids=["nothing", "entries"])
def test_a_stream_that_gets_its_first_name_back(tmp_path: Path, between: int) -> None:
    """``between``: entries that are added while it has the other name."""
    target = tmp_path / "target"
    with freed(target, tier_grace=0) as (server, entries):
        with Raw(server.port) as client:
            first = names(target)
            assert client("RENAME", "a", "b") == b"OK"
            added = between
            if between:
                entries = add(client, between, first=1001, key="b")
                wait_until_freed(client, FREED + between // NODE)
            assert client("SAVE") == b"OK"
            passes(client)
            assert names(target) >= first
            assert client("RENAME", "b", "a") == b"OK"
            entries = add(client, 5 * NODE, first=2001)
            wait_until_freed(client, FREED + (added + 5 * NODE) // NODE)
            passes(client)
            assert names(target) >= first, "objects that the stream needs were deleted"
            empty_cache(server)
            assert client("XRANGE", "a", "-", "+") == entries
            history = History(target).entries(b"a")
            begin = entries.index(history[0])
            assert history == entries[begin : begin + len(history)]
            assert begin + len(history) >= len(entries) - NODE
        server.kill()
        server.start()
        empty_cache(server)
        with Raw(server.port) as client:
            assert client("XRANGE", "a", "-", "+") == entries
            passes(client)
            assert client("XTRIM", "a", "MAXLEN", 2 * NODE) == len(entries) - 2 * NODE
            assert client("SAVE") == b"OK"
            examine_again(server)
            eventually(lambda: not names(target) & first, "the objects of removed entries remain")
            assert client("XRANGE", "a", "-", "+") == entries[-2 * NODE :]
            assert client("DEL", "a") == 1
            assert client("SAVE") == b"OK"
            examine_again(server)
            eventually(lambda: names(target) == set(), "the objects of the deleted stream remain")


def test_a_copied_stream_that_is_freed_after_it_got_its_first_name_back(tmp_path: Path) -> None:
    """It is copied below both names before entries leave the store."""
    with tiered(tmp_path, save="", node_cache_size="0", tier_grace=0) as server, Raw(server.port) as client:
        add(client, COUNT)
        eventually(lambda: len(History(tmp_path).entries(b"a")) >= COUNT - NODE)
        assert client("RENAME", "a", "b") == b"OK"
        entries = add(client, 5 * NODE, first=1001, key="b")
        eventually(lambda: len(History(tmp_path).entries(b"b")) >= len(entries) - NODE)
        assert client("CONFIG", "SET", "tier-free", "yes") == b"OK"
        wait_until_freed(client, FREED)
        assert client("RENAME", "b", "a") == b"OK"
        entries = add(client, 5 * NODE, first=2001)
        wait_until_freed(client, len(entries) // NODE - 2)
        passes(client)
        empty_cache(server)
        assert client("XRANGE", "a", "-", "+") == entries
        assert client("DEL", "a") == 1
        assert client("SAVE") == b"OK"
        examine_again(server)
        eventually(lambda: names(tmp_path) == set(), "the objects of the deleted stream remain")
