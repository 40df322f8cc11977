"""Deletion in the object store, with the real program: a directory, S3, and kills at any moment."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

from persistence.tiering.objectstore import HistoryStore, MissingFileError
from tests.persistence.tiering.kit import Entry, History
from tests.respserver.tiering.test_tiering import add, await_copy, fields, helpers, tiered
from tests.tidelog.jobs.s3kit import s3_bucket
from tests.waiting import eventually
from tests.wire.rawclient import Raw


def test_objects_in_s3(tmp_path: Path) -> None:
    with s3_bucket() as bucket:
        url = f"{bucket}/{tmp_path.name}"
        store = HistoryStore(url, 60, lambda: None)
        with tiered(url, tier_grace=0) as server, Raw(server.port) as client:
            await_copy(store, add(client, 55))
            await_copy(store, add(client, 40))
            await_copy(store, add(client, 40, "b"), b"b")
            before = set(store.names("objects"))
            client("XTRIM", "a", "MAXLEN", 15)
            client("DEL", "b")
            assert client("SAVE") == b"OK"
            eventually(lambda: int(fields(client)["tier_deleted_objects"]) >= 2, "nothing was deleted")
            eventually(lambda: store.names("streams") == ["a"])
            eventually(lambda: len(store.names("streams/a")) == 1, "old versions of the manifest remain")
            manifest = History(store).manifest(b"a")
            assert manifest is not None
            assert set(store.names("objects")) == {part.name for part in manifest.parts} < before
            eventually(lambda: waits(client) == int(fields(client)["tier_waiting_bytes"]) == 0)
            assert fields(client)["tier_deletion_error"] == ""
            assert int(fields(client)["tier_deleted_bytes"]) > 0
            assert len(store.names("deletions")) <= 11


def test_the_grace(tmp_path: Path) -> None:
    with tiered(tmp_path) as server, Raw(server.port) as client:
        await_copy(tmp_path, add(client, 55))
        assert client("CONFIG", "GET", "tier-grace") == [b"tier-grace", b"86400"]
        client("DEL", "a")
        assert client("SAVE") == b"OK"
        eventually(lambda: waits(client) == len(list((tmp_path / "objects").iterdir())))
        count, passes = waits(client), int(fields(client)["tier_passes"])
        eventually(lambda: int(fields(client)["tier_passes"]) > passes + 2)
        assert len(list((tmp_path / "objects").iterdir())) == count > 0
        assert client("CONFIG", "SET", "tier-grace", 0) == b"OK"
        eventually(lambda: list((tmp_path / "objects").iterdir()) == [])
        eventually(lambda: int(fields(client)["tier_deleted_objects"]) == count)


def waits(client: Raw) -> int:
    return int(fields(client)["tier_waiting_objects"])


def reads(target: Path, entries: list[Entry]) -> bool:
    """Return whether the history was read. Without a grace, an object can be deleted meanwhile."""
    try:
        history = History(target).entries(b"a")
    except MissingFileError:
        return False
    left = [entry for entry in history if entry in entries]
    assert left == entries[: len(left)]
    return True


def append(client: Raw, count: int, random_: random.Random) -> None:
    """Append entries that can't be compressed much, so that they leave the store, and write a checkpoint."""
    client.pipeline(*[("XADD", "a", "*", "text", random_.randbytes(60).hex()) for _ in range(count)])
    assert client("SAVE") == b"OK"


def read(client: Raw) -> list[Entry]:
    found = client("XRANGE", "a", "-", "+")
    assert isinstance(found, list), found
    return found


def test_kills_at_any_moment(tmp_path: Path) -> None:
    """All entries can be read after each kill, also those that are only in objects, and nothing else remains."""
    random_ = random.Random(7)
    target = tmp_path / "target"
    target.mkdir()
    expected: list[Entry] = []
    with tiered(target, tier_grace=0, tier_free="yes", node_cache_size=0, save="") as server:
        for step in range(4):
            with Raw(server.port) as client:
                expected = read(client)
                append(client, 30, random_)
                add(client, 25, f"gone{step}")
                key = b"gone%d" % step
                assert eventually(lambda its=key: History(target).manifest(its) is not None)  # type: ignore[misc]
                assert read(client)[: len(expected)] == expected
                client("XTRIM", "a", "MAXLEN", 35)
                client("DEL", f"gone{step}")
                assert client("SAVE") == b"OK"
                time.sleep(random_.random() / 10)
                for pid in helpers(server):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                entries = read(client)
            if step % 3 == 1:
                server.kill()
                server.start()
            assert eventually(lambda all_=entries: reads(target, all_))  # type: ignore[misc]
        with Raw(server.port) as client:
            append(client, 30, random_)
            await_copy(target, add(client, 30, "b"), b"b")
            client("DEL", "b")
            assert client("SAVE") == b"OK"
            eventually(lambda: list((target / "streams").iterdir()) == [target / "streams" / "a"])

            def sound() -> bool:
                manifest = History(target).manifest(b"a")
                listed = {part.name for part in manifest.parts} if manifest is not None else set()
                return {path.name for path in (target / "objects").iterdir()} == listed

            eventually(sound, "objects remain that no manifest lists")
            assert read(client)[:-30] == entries
            assert int(fields(client)["tier_fetched_nodes"]) > 0
            assert fields(client)["tier_deletion_error"] == ""
