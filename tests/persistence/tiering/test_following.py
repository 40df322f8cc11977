"""What a replica frees: only nodes whose entries the objects of its leader have, whatever fails in between."""

from __future__ import annotations

import io
import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from persistence.store import Store
from persistence.tiering.following import Following
from persistence.tiering.freeing import FreedNode
from persistence.tiering.helper import Helper
from persistence.tiering.objectstore import Files, HistoryStore, HistoryStoreError, LocalFiles
from persistence.tiering.ownership import ForeignPrefixError
from persistence.tiering.source import AGELESS
from storage.history import objectfile, owner, pins
from storage.model.ids import MASK64
from storage.nodes import reference
from tests.persistence.tiering.kit import SERVER, Entry, FaultyFiles, TieredServer
from tests.storage.history.kit import words_of


def add(data: TieredServer, key: str, count: int) -> None:
    """Append entries that can't be compressed much, and write a checkpoint."""
    random_ = random.Random(count)
    data.client.pipeline(*[("XADD", key, "*", "text", random_.randbytes(60).hex()) for _ in range(count)])
    data.save()


class Replica:
    """What the helper process of a replica does, without the process. Its store is a copy of that of its leader."""

    def __init__(self, data: TieredServer, files: Files | None = None, server: str = SERVER) -> None:
        self.found: list[FreedNode] = []
        self._data = data
        self._objects = HistoryStore(str(data.target), 30, lambda: None)
        self._objects._files = files or LocalFiles(str(data.target))
        self.following = Following(self._objects, server, self.found.extend, lambda: None, lambda _text: None)

    def run(self) -> list[str]:
        return self.following.run(self._data.copied, AGELESS)

    def entries(self) -> list[Entry]:
        """Return the entries of the nodes that can leave the store, as the object store has them now."""
        entries: list[Entry] = []
        for node in sorted(self.found):
            its = reference.unpack(node.reference)
            content = (self._data.target / "objects" / its.object).read_bytes()
            (section,) = [
                one for one in objectfile.verify(content) if one.head.first_id <= its.first_id <= one.head.last_id
            ]
            at = section.ids.index(its.first_id)
            assert section.ids[at + its.entries - 1] == its.last_id
            entries += [
                [b"%d-%d" % (section.ids[one] >> 64, section.ids[one] & MASK64), list(words_of(section.fields(one)))]
                for one in range(at, at + its.entries)
            ]
        return entries


@pytest.fixture
def copied(data: TieredServer) -> TieredServer:
    """A server with two streams that were copied, except for their last nodes."""
    (data.target / owner.NAME).write_bytes(owner.encode(SERVER))
    add(data, "a", 65)
    data.copier().run()
    return data


def test_a_store_that_is_behind_the_history(copied: TieredServer, tmp_path: Path) -> None:
    """A replica continues where its store ended."""
    behind = tmp_path / "behind"
    shutil.copytree(copied.copied, behind)
    add(copied, "a", 40)
    copied.copier().run()
    now = tmp_path / "now"
    shutil.copytree(copied.copied, now)
    replica = Replica(copied)
    for path, nodes in ((behind, 6), (now, 10), (now, 10)):
        shutil.copy(path / "data.mdb", copied.copied)
        assert replica.run() == []
        assert replica.entries() == copied.entries("a")[: nodes * 10]
    store = Store(copied.copied)
    assert store.free(replica.found)[0] == 10
    store.close()
    copied.client("XADD", "b", "*", "f", "v")
    assert Replica(copied).run() == []


def test_each_call_fails_once(copied: TieredServer) -> None:
    """Nothing wrong is reported, and the next process reports everything."""
    calls = 5
    for after in (False, True):
        for fail_at in range(calls):
            files = FaultyFiles(LocalFiles(str(copied.target)), fail_at, after)
            replica = Replica(copied, files)
            with pytest.raises(HistoryStoreError):
                replica.run()
            assert replica.entries() == copied.entries("a")[: len(replica.found) * 10]
    files = FaultyFiles(LocalFiles(str(copied.target)))
    replica = Replica(copied, files)
    assert (replica.run(), files.calls) == ([], calls)
    assert replica.entries() == copied.entries("a")[:60]


@pytest.mark.parametrize("name", ["owner", "streams/a", "objects"])
def test_changed_bytes(copied: TieredServer, name: str) -> None:
    """Whichever byte the object store changes, no other entries replace a node."""
    files = FaultyFiles(LocalFiles(str(copied.target)))
    whole = max(len(path.read_bytes()) for path in copied.target.rglob("*") if path.is_file())
    reported = 0
    for at in range(0, whole, 13):
        files.change = lambda found, data, at=at: (  # type: ignore[misc]
            data[:at] + bytes((data[at] ^ 64,)) + data[at + 1 :] if found.startswith(name) and at < len(data) else data
        )
        replica = Replica(copied, files)
        problems: list[str] = []
        with suppress(Exception):
            problems = replica.run()
            assert bool(problems) != bool(replica.found)
        reported += bool(replica.found)
        if replica.found:
            assert replica.entries() == copied.entries("a")[:60]
    assert reported < whole // 13


def test_the_owner(copied: TieredServer) -> None:
    with pytest.raises(HistoryStoreError, match="belongs to another server or server group"):
        Replica(copied, server="7" * 40).run()
    (copied.target / owner.NAME).unlink()
    later = Replica(copied)
    assert (later.run(), later.found) == ([], []), "the leader has not begun"
    (copied.target / owner.NAME).write_bytes(owner.encode(SERVER))
    assert (later.run(), len(later.found)) == ([], 6)


def test_references_to_objects_of_another_owner(copied: TieredServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica outside a group pins them: it has followed the owner, and now follows another server."""
    monkeypatch.setattr("persistence.tiering.adopting.references", lambda *_: {"x.tide"})
    for own in ("", "8" * 40):
        first = {"url": str(copied.target), "server": "7" * 40, "seconds": 30, "follows": True, "self": own}
        helper = Helper(first, io.StringIO())
        after = AGELESS.after.pack().hex()
        with pytest.raises(ForeignPrefixError, match="belongs to another server"):
            helper.serve({"directory": str(copied.copied), "now": 0, "after": after, "seconds": 30})
        assert (copied.target / "pins").exists() == bool(own)
    (pin,) = (copied.target / "pins").iterdir()
    assert pins.decode(pin.read_bytes()).objects == frozenset({"x.tide"})


def test_streams_that_differ(copied: TieredServer) -> None:
    """A replica whose entries are not those of the leader keeps them, and reports it."""
    ids = [entry[0] for entry in copied.entries("a")]
    (copied.copied / "data.mdb").rename(copied.copied / "leader.mdb")
    copied.client("DEL", "a")
    copied.client.pipeline(*[("XADD", "a", one, "n", "y" * 60 + str(at)) for at, one in enumerate(ids)])
    copied.save()
    replica = Replica(copied)
    assert (replica.run(), replica.found) == ([], []), "another stream with the same name and IDs"
