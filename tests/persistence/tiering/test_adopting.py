"""A server that reads below the prefix of another one protects what it needs, and reports what it can not protect."""

from __future__ import annotations

import pytest

from persistence.tiering import adopting
from persistence.tiering.objectstore import HistoryStore
from storage.history import deletions, pins
from tests.persistence.tiering.kit import CLOCK, GRACE, Copier, TieredServer
from tests.persistence.tiering.test_deleting import evict, three

OWN = "8" * 40


@pytest.fixture
def evicted(data: TieredServer) -> tuple[Copier, list[str]]:
    """Three objects, of which the first two wait for their deletion."""
    copier, names = three(data)
    evict(data, 25)
    copier.run()
    copier.delete()
    assert [file.name for file in copier.deletions.current.files] == [f"objects/{name}" for name in names[:2]]
    return copier, names


def adopt(data: TieredServer, names: list[str], now: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let another server adopt objects, and return its warnings."""
    warnings: list[str] = []
    monkeypatch.setattr(adopting, "references", lambda *_: set(names))
    store = HistoryStore(str(data.target), 30, lambda: None)
    adopting.adopt(store, OWN, data.copied, now, lambda: None, warnings.append)
    (pin,) = (data.target / "pins").iterdir()
    assert pins.decode(pin.read_bytes()).objects == frozenset(names)
    return warnings


def test_objects_that_wait_are_protected(
    data: TieredServer, evicted: tuple[Copier, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    copier, names = evicted
    assert adopt(data, names, CLOCK, monkeypatch) == []
    copier.now += 2 * GRACE
    copier.delete()
    assert {path.name for path in (data.target / "objects").iterdir()} == set(names)


def test_objects_that_were_due_are_reported(
    data: TieredServer, evicted: tuple[Copier, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner can have read the pins before this one was written."""
    _, names = evicted
    (warning,) = adopt(data, names, CLOCK + GRACE, monkeypatch)
    assert "this server refers to 2 objects that the owner of" in warning
    assert min(names[:2]) in warning
    assert adopt(data, names, CLOCK + GRACE, monkeypatch) == [], "the pin is not new"


def test_objects_that_were_deleted_are_reported(
    data: TieredServer, evicted: tuple[Copier, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    copier, names = evicted
    copier.now += 2 * GRACE
    copier.delete()
    (warning,) = adopt(data, names, copier.now, monkeypatch)
    assert "this server refers to 2 objects that do not exist below" in warning


def test_a_damaged_list_is_reported(
    data: TieredServer, evicted: tuple[Copier, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    copier, names = evicted
    (data.target / deletions.file_name(copier.deletions.current.number)).write_bytes(b"damaged")
    (warning,) = adopt(data, names, CLOCK, monkeypatch)
    assert warning.startswith("whether objects that this server needs are being deleted is unknown: ")
