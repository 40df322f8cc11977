"""Deletions while another process works with the same history: a backup, or another leader."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistence.tiering import source
from storage.history import owner
from storage.history.manifest import manifest_name
from storage.history.pins import Pin
from tests.persistence.tiering.kit import GRACE, LOG, SERVER, Copier, History, TieredServer
from tests.persistence.tiering.test_deleting import evict, listed, objects, waiting
from tidelog.backup import objectpins
from tidelog.backup.targets import BackupError, BackupTarget, target_at

PIN = "pins/backup-x.json"


@pytest.fixture
def removed(data: TieredServer) -> tuple[Copier, str]:
    """An object that waits for its deletion, and the helper that will delete it. Backups use the real time."""
    (data.target / owner.NAME).write_bytes(owner.encode(SERVER))
    copier = data.copier(now=int(time.time() * 1000) - 3 * GRACE)
    for _ in range(2):
        data.add("a", 25)
        copier.run()
    name, _ = listed(data)
    evict(data, 25)
    copier.delete()
    assert waiting(copier) == {name}
    copier.now += 3 * GRACE
    return copier, name


class _Watched:
    """The object store of a backup. Something happens after the call number ``at``."""

    def __init__(self, target: BackupTarget, at: int, happens: Any) -> None:
        self._target = target
        self._at = at
        self._happens = happens
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return value

        def call(*args: Any, **more: Any) -> Any:
            result = value(*args, **more)
            self.calls += 1
            if self.calls == self._at:
                self._happens()
            return result

        return call


@pytest.mark.parametrize("at", range(1, 8))
def test_a_backup_fails_if_an_object_is_deleted_at_any_call(
    data: TieredServer, removed: tuple[Copier, str], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The helper has read the pins before the backup has written its own."""
    copier, name = removed
    copier.deleting._needed.read_pins = lambda store: None  # type: ignore[method-assign]
    watched = _Watched(target_at(str(data.target)), at, copier.delete)
    monkeypatch.setattr(objectpins, "target_at", lambda _url: watched)
    with pytest.raises(BackupError, match=r"are being deleted|do not exist"):
        objectpins.pin(str(data.target), PIN, "backup", {name})
    assert not (data.target / PIN).exists()
    assert watched.calls >= at or name in objects(data)


def test_a_backup_sees_a_shorter_grace(data: TieredServer, removed: tuple[Copier, str]) -> None:
    """The object became due because tier-grace was made shorter, and the backup begins after the pins were read."""
    copier, name = removed
    (file,) = copier.deletions.current.files
    copier.deletions.save(copier.deletions.current.listed([replace(file, since=copier.now)]))
    read_pins = copier.deleting._needed.read_pins

    def read(store: Any) -> None:
        read_pins(store)
        with pytest.raises(BackupError, match="are being deleted"):
            objectpins.pin(str(data.target), PIN, "backup", {name})

    copier.deleting._needed.read_pins = read  # type: ignore[method-assign]
    copier.now += 1
    copier.delete(grace=0)
    assert objects(data) == set(listed(data))


def test_the_manifest_of_a_new_leader_is_not_deleted(data: TieredServer) -> None:
    """The old leader pauses before it lists the folder of a stream that no longer exists."""
    data.add("a", 25)
    old = data.copier(epoch=1)
    old.run()
    data.client("DEL", "a")
    data.save()
    old.delete()
    old.now += 3 * GRACE
    names, new = old.objects.names, data.copier(epoch=2, now=old.now)

    def paused(folder: str) -> list[str]:
        if folder == "streams/a" and not new.state.copied:
            data.add("a", 45)
            new.run()
        return names(folder)

    old.objects.names = paused  # type: ignore[method-assign]
    old.delete()
    assert "another leader uses this prefix" in old.deleting.problems[0]
    data.check("a", 5)


# -- a new leader whose last checkpoint is older than the history --------------------------------------------------
class Lagging:
    """A new leader. Its log has all records, but its store is a copy from the time of the call."""

    def __init__(self, data: TieredServer, tmp_path: Path) -> None:
        self._data = data
        self._directory = tmp_path / "lagging"
        shutil.copytree(data.copied, self._directory)

    def begin(self, **more: Any) -> Copier:
        copier = Copier(self._directory, self._data.target, None, 2, **more)
        with source.opened(self._data.copied) as view:
            copier.floor = view.offset
        return copier

    def catch_up(self) -> None:
        shutil.copy(self._data.copied / "data.mdb", self._directory)


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("known", [True, False])
def test_a_new_leader_changes_nothing_before_its_store_has_the_log(
    data: TieredServer, tmp_path: Path, deleted: bool, known: bool
) -> None:
    """Its store lacks entries, a stream, or that the stream was deleted and created again, perhaps without a grace."""
    data.add("a" if known else "other", 40)
    lagging = Lagging(data, tmp_path)
    if deleted:
        data.client("DEL", "a")
    data.add("a", 45, "more")
    old = data.copier(epoch=1)
    old.run()
    old.delete()
    files = {path: path.read_bytes() for path in data.target.rglob("*") if path.is_file()}
    new = lagging.begin()
    for _ in range(3):
        assert not new.run()
        new.delete(grace=0)
        new.now += GRACE
    assert {path: path.read_bytes() for path in data.target.rglob("*") if path.is_file()} == files
    lagging.catch_up()
    for _ in range(3):
        assert new.run()
        new.delete(grace=0)
        new.now += GRACE
    assert (new.problems, new.deleting.problems, new.warnings) == ([], [], [])
    data.check("a", 5)


def test_a_store_that_is_older_than_the_manifest_of_a_stream(data: TieredServer) -> None:
    data.add("a", 25)
    data.add("b", 25)
    data.copier().run()
    found = History(data.target).manifest(b"a")
    assert found is not None
    path = data.target / "streams" / "a" / manifest_name(1)
    path.write_bytes(replace(found, offset=1 << 50).encode())
    data.client("DEL", "a")
    data.add("a", 25, "new")
    data.add("b", 20)
    copier = data.copier()
    copier.run()
    (problem,) = copier.problems
    assert f"its manifest was written at log offset {1 << 50}" in problem
    assert History(data.target).manifest(b"a") == replace(found, offset=1 << 50)
    data.check("b", 5)
    version = copier.manifests.load(b"a", 1)
    copier.manifests.drop(version)
    assert copier.deletions.current.offset == 1 << 50, "only a store with these records can verify the deletion"


# -- a data directory that was replaced by an older copy -----------------------------------------------------------
def test_an_older_copy_whose_log_has_grown(data: TieredServer, tmp_path: Path) -> None:
    """Its log has another ID since the machine has started again, and is longer than the one that it replaces."""
    data.add("other", 5)
    lagging = Lagging(data, tmp_path)
    data.add("a", 45)
    copier = data.copier()
    copier.prepare({LOG: 5000})
    copier.run()
    names = set(listed(data))
    new = "20" * 20
    with source.opened(tmp_path / "lagging") as view:
        older = {new: 1 << 60, LOG: view.offset}
    copier = lagging.begin()
    copier.floor = 0
    for _ in range(3):
        copier.prepare(older)
        copier.run()
        copier.delete(points=older)
        copier.now += 2 * GRACE
    assert f"of a log with the ID {LOG}, of which this server has the records up to" in copier.deleting.problems[0]
    assert objects(data) == names


def test_an_older_copy_is_noticed_before_the_pass(data: TieredServer, tmp_path: Path) -> None:
    """What waited for its deletion remains, also if the pass changes the manifests with the highest offset."""
    data.add("a", 45)
    data.add("b", 45)
    copier = data.copier()
    copier.run()
    kept = set(listed(data, b"b"))
    lagging = Lagging(data, tmp_path)
    data.client("DEL", "b")
    data.save()
    copier.run()
    copier.delete()
    with source.opened(tmp_path / "lagging") as view:
        older = {LOG: view.offset}
    copier = lagging.begin()
    copier.floor = 0
    for _ in range(3):
        copier.prepare(older)
        copier.run()
        copier.delete(points=older)
        copier.now += 2 * GRACE
    assert "its data directory seems to be an older copy" in copier.deleting.problems[0]
    assert objects(data) >= kept


def test_the_id_of_the_log_is_recorded_at_each_change(data: TieredServer) -> None:
    """Only the last 8 IDs of a log are known, so the one in the list must not be older."""
    data.add("a", 25)
    points: dict[str, int] = {}
    for number in range(12):
        points = {f"{number:040}": 1 << 60, **dict(list(points.items())[:7])}
        copier = data.copier()
        copier.prepare(points)
        copier.run()
        assert copier.deleting.problems == []
        assert copier.deletions.current.log == f"{number:040}"
        recorded = copier.deletions.current.number
        copier.prepare(points)
        assert copier.deletions.current.number == recorded


def test_the_id_of_a_log_that_no_replica_follows_is_not_recorded(data: TieredServer) -> None:
    """The next leader does not know it, and has everything that was copied."""
    data.add("a", 25)
    copier = data.copier()
    copier.prepare({LOG: 5000})
    copier.run()
    one, two = "20" * 20, "30" * 20
    unconfirmed = data.copier()
    unconfirmed.floor = 5000
    unconfirmed.prepare({one: 5100, LOG: 5000}, offset=4999)
    assert unconfirmed.deletions.current.log == LOG
    following = data.copier()
    following.floor = 5000
    following.prepare({two: 5200, LOG: 5000}, offset=4999)
    assert following.deleting.problems == []
    following.prepare({two: 5200, LOG: 5000}, offset=5000)
    assert following.deleting.problems == []
    assert following.deletions.current.log == two


def test_a_pin_that_replaces_another_one_meanwhile_counts(data: TieredServer, removed: tuple[Copier, str]) -> None:
    """A restored server has written its pin, and the pin of its backup is removed, after the pins were listed."""
    copier, name = removed
    pin = Pin("backup", 0, 0, frozenset({name})).encode()
    copier.objects.write(PIN, pin)
    names = copier.objects.names

    def replaced(folder: str) -> list[str]:
        found = names(folder)
        if folder == "pins" and (data.target / PIN).exists():
            copier.objects.write("pins/server-x.json", pin)
            copier.objects.remove(PIN)
        return found

    copier.objects.names = replaced  # type: ignore[method-assign]
    copier.delete()
    assert not (data.target / PIN).exists()
    assert name in objects(data)


def test_nothing_is_deleted_while_a_listed_pin_does_not_exist(data: TieredServer, removed: tuple[Copier, str]) -> None:
    """The object store lists a file that it does not have, again and again."""
    copier, name = removed
    names = copier.objects.names
    listed = {"pins": ["x.json"]}
    copier.objects.names = lambda folder: listed.get(folder) or names(folder)  # type: ignore[method-assign]
    copier.delete()
    assert name in objects(data)
    assert copier.deleting.problems == ["pins/x.json is listed, but does not exist: nothing is deleted in this pass"]
