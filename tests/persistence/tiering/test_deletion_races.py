"""Deletions while another process works with the same history: a backup, or another leader."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from storage.history import owner
from tests.persistence.tiering.kit import GRACE, SERVER, Copier, TieredServer
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
    copier.deleting._read_pins = lambda store: None  # type: ignore[method-assign]
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
    read_pins = copier.deleting._read_pins

    def read(store: Any) -> None:
        read_pins(store)
        with pytest.raises(BackupError, match="are being deleted"):
            objectpins.pin(str(data.target), PIN, "backup", {name})

    copier.deleting._read_pins = read  # type: ignore[method-assign]
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
