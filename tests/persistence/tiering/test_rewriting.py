"""Lost objects are written again, byte for byte, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from persistence.store import Store
from persistence.tiering import rewriting
from persistence.tiering.objectstore import HistoryStoreError, LocalFiles
from persistence.tiering.rewriting import ObjectRewriting
from storage.history import owner, rewrites
from storage.history.manifest import object_name
from storage.history.rewrites import RewriteRequest, RewrittenStream
from tests.persistence.tiering.kit import SERVER, Copier, FaultyFiles, History, TieredServer
from tests.persistence.tiering.test_following import Replica, add

DAMAGED = object_name(0, "0" * 32)


def copied(data: TieredServer) -> tuple[Copier, Path]:
    """Copy two streams in one object."""
    for key, count in (("a", 65), ("b", 25)):
        add(data, key, count)
    copier = data.copier()
    copier.run()
    (path,) = (data.target / "objects").iterdir()
    return copier, path


def request(data: TieredServer, path: Path) -> Path:
    """Request that an object is written again, as ``tidelog history repair`` does. Return the file."""
    parts = []
    for stream in (b"a", b"b"):
        manifest = History(data.target).manifest(stream)
        assert manifest is not None
        parts += [
            RewrittenStream(stream, manifest.sid, part.first_ord, part.end_ord)
            for part in manifest.parts if part.name == path.name
        ]  # fmt: skip
    file = data.target / rewrites.FOLDER / f"{path.name}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(RewriteRequest(path.name, tuple(reversed(parts))).encode())
    return file


def run(data: TieredServer, copier: Copier, offset: int = -1) -> list[str]:
    """Execute the requests, and return the lines for the log."""
    warnings: list[str] = []
    ObjectRewriting(copier.objects, warnings.append, lambda: None).run(data.copied, offset, 0)
    return warnings


@pytest.mark.parametrize("at_once", [1, 64])
def test_the_same_bytes(data: TieredServer, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """Of several streams, and in several transactions. More entries have no effect."""
    monkeypatch.setattr(rewriting, "AT_ONCE", at_once)
    monkeypatch.setattr("storage.history.section.FULL", 500)
    copier, path = copied(data)
    add(data, "a", 30)
    content = path.read_bytes()
    path.unlink()
    file = request(data, path)
    (line,) = run(data, copier)
    assert line == f"repair of {path.name}: the object was written again from the store, with 80 entries"
    assert path.read_bytes() == content
    assert not file.exists()
    assert run(data, copier) == []
    request(data, path)
    (line,) = run(data, copier)
    assert line.endswith("the object is intact")


def delete_an_entry(data: TieredServer) -> None:
    data.client("XDEL", "a", data.entries("a")[15][0])


def free(data: TieredServer) -> None:
    replica = Replica(data)
    assert replica.run() == []
    store = Store(data.copied)
    assert store.free(replica.found)[0]
    store.close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (delete_an_entry, "the nodes in the store differ from those that were copied"),
        (lambda data: data.client("XTRIM", "b", "MAXLEN", 15), "entries of stream b'b' were evicted"),
        (lambda data: data.client("DEL", "b"), "stream b'b' was deleted"),
        (free, "have left the store"),
    ],
)  # fmt: skip
def test_what_the_store_no_longer_has(data: TieredServer, change: Callable[[TieredServer], object], why: str) -> None:
    copier, path = copied(data)
    (data.target / owner.NAME).write_bytes(owner.encode(SERVER))
    change(data)
    if change is not free:
        data.save()
    path.unlink()
    file = request(data, path)
    (line,) = run(data, copier)
    assert "the object can't be written again, because " in line
    assert why in line
    assert not path.exists()
    assert not file.exists(), "a request counts once"


def test_a_stream_that_the_request_lacks(data: TieredServer) -> None:
    copier, path = copied(data)
    path.unlink()
    file = request(data, path)
    found = rewrites.decode(file.read_bytes())
    for streams in (found.streams[:1], ()):
        file.write_bytes(RewriteRequest(path.name, streams).encode())
        (line,) = run(data, copier)
        assert "the object can't be written again" in line
        assert not path.exists()


def test_invalid_requests_are_removed(data: TieredServer) -> None:
    copier, path = copied(data)
    file = request(data, path)
    content = file.read_bytes()
    for name, damaged in ((file.name, content[:-5]), (f"{DAMAGED}.json", content), ("x.json", b"")):
        file.unlink()
        (file.parent / name).write_bytes(damaged)
        (line,) = run(data, copier)
        assert name.removesuffix(".json") in line
        assert list(file.parent.iterdir()) == []
        file.write_bytes(content)


def test_records_that_are_not_confirmed_wait(data: TieredServer) -> None:
    copier, path = copied(data)
    path.unlink()
    file = request(data, path)
    assert run(data, copier, offset=1) == []
    assert file.exists()
    assert len(run(data, copier)) == 1
    assert path.exists()


def test_each_call_fails_once(data: TieredServer) -> None:
    """The next attempt succeeds."""
    copier, path = copied(data)
    content = path.read_bytes()
    files = FaultyFiles(LocalFiles(str(data.target)))
    copier.objects._files = files
    path.write_bytes(b"damaged")
    request(data, path)
    run(data, copier)
    for after in (False, True):
        for fail_at in range(files.calls):
            path.write_bytes(b"damaged")
            file = request(data, path)
            copier.objects._files = FaultyFiles(LocalFiles(str(data.target)), fail_at, after)
            with pytest.raises(HistoryStoreError):
                run(data, copier)
            copier.objects._files = LocalFiles(str(data.target))
            run(data, copier)
            assert path.read_bytes() == content
            assert not file.exists()
