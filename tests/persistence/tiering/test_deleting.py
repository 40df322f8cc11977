"""What is deleted in the object store, when, and what a fault at any call leaves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from xxhash import xxh3_64_hexdigest

from persistence.tiering.adopting import adopt
from persistence.tiering.objectstore import HistoryStoreError, LocalFiles
from persistence.tiering.source import StoreView
from persistence.tiering.tieringpass import CopiedTo
from resp.errors import CorruptError
from storage.history import deletions, manifest, objectfile, pins, section
from storage.history.deletions import Deletions
from storage.history.manifest import manifest_name
from storage.history.pins import Pin
from tests.persistence.tiering.kit import CLOCK, GRACE, LOG, Copier, FaultyFiles, History, TieredServer

LATER = CLOCK + 2 * GRACE


def objects(data: TieredServer) -> set[str]:
    return {path.name for path in (data.target / "objects").iterdir()}


def waiting(copier: Copier) -> set[str]:
    return {file.name.removeprefix("objects/") for file in copier.deletions.current.files}


def listed(data: TieredServer, stream: bytes = b"a") -> list[str]:
    found = History(data.target).manifest(stream)
    return [] if found is None else [part.name for part in found.parts]


def three(data: TieredServer) -> tuple[Copier, list[str]]:
    """Copy a stream of 60 entries in objects of 10, 20, and 20 entries."""
    copier = data.copier()
    for _ in range(3):
        data.add("a", 20)
        copier.run()
    copier.delete()
    return copier, listed(data)


def evict(data: TieredServer, length: int) -> None:
    data.client("XTRIM", "a", "MAXLEN", length)
    data.save()


def check(data: TieredServer, *keys: str) -> None:
    """Compare the history of streams with their entries. Reads each listed object."""
    for key in keys:
        entries = data.entries(key)
        left = [entry for entry in data.history(key) if entry in entries]
        assert left == entries[: len(left)]


def test_an_object_is_deleted_in_two_phases(data: TieredServer) -> None:
    copier, names = three(data)
    evict(data, 51)  # one entry of the first object is left
    copier.delete()
    assert listed(data) == names
    evict(data, 50)
    copier.delete()
    assert (listed(data), waiting(copier)) == (names[1:], {names[0]})
    assert copier.deleting.totals.waiting_objects == 1
    assert copier.deleting.totals.waiting_bytes == (data.target / "objects" / names[0]).stat().st_size
    copier.now += GRACE
    copier.delete()
    assert objects(data) == set(names), "the grace, and the time until the manifest was written, have not passed"
    copier.now = LATER
    copier.delete()
    assert objects(data) == set(names[1:])
    assert (copier.deleting.totals.objects, copier.deleting.totals.waiting_bytes) == (1, 0)
    data.add("a", 20)
    copier.run()
    data.check("a", 10)
    again = data.copier()
    again.run()
    again.delete()
    assert (again.warnings, again.problems, again.deleting.problems) == ([], [], [])


@pytest.mark.parametrize("how", ["DEL", "FLUSHALL", "PEXPIRE", "XDEL", "again"])
def test_all_ways_to_remove_entries(data: TieredServer, how: str) -> None:
    copier, _ = three(data)
    data.add("other", 25)
    copier.run()
    (other,) = set(listed(data, b"other"))
    if how == "XDEL":
        data.client("XDEL", "a", *[entry[0] for entry in data.entries("a")])
    elif how == "again":
        data.client("DEL", "a")
        data.add("a", 25, "new")
        copier.run()
    else:
        data.client(*{"DEL": ("DEL", "a"), "FLUSHALL": ("FLUSHALL",), "PEXPIRE": ("PEXPIRE", "a", 1)}[how])
        while data.client("EXISTS", "a"):
            pass
    data.save()
    copier.delete()
    copier.now = LATER
    copier.delete()
    assert objects(data) == {
        "FLUSHALL": set(), "again": {other, *listed(data)}
    }.get(how, {other}), "only what was removed"  # fmt: skip
    assert copier.deleting.problems == []
    if how == "again":
        data.check("a", 5)


def test_manifests_of_deleted_streams_go_and_their_numbers_are_not_used_again(data: TieredServer) -> None:
    copier, _ = three(data)
    data.client("DEL", "a")
    data.save()
    copier.delete()
    copier.now = LATER
    copier.delete()
    assert not (data.target / "streams" / "a").exists()
    data.add("a", 25, "new")
    copier.run()
    found = History(data.target).manifest(b"a")
    assert found is not None
    assert found.number == 5
    data.client("DEL", "a")
    data.add("a", 45, "again")
    copier = data.copier()
    copier.run()
    data.check("a", 5)


def test_old_versions_of_manifests_are_deleted(data: TieredServer) -> None:
    copier, _ = three(data)
    numbers = lambda: sorted(int(path.name[:20]) for path in (data.target / "streams" / "a").iterdir())  # noqa: E731
    assert numbers() == [1, 2, 3]
    copier.now = LATER
    copier.delete()
    assert numbers() == [3]
    for step in (1, 2, 3):
        copier.now += 6 * GRACE // 10
        data.add("a", 20)
        copier = data.copier(now=copier.now)  # which reads the times
        copier.run()
        copier.delete()
        assert numbers() == [[3, 4], [3, 4, 5], [4, 5, 6]][step - 1]
    data.check("a", 10)


def test_an_object_of_several_streams(data: TieredServer) -> None:
    for key in ("a", "b", "c"):
        data.add(key, 25)
    copier = data.copier()
    copier.run()
    for number, key in enumerate(("b", "a", "c")):
        assert len(objects(data)) == 1, number
        data.client("DEL", key)
        data.save()
        copier.delete()
        copier.now += 2 * GRACE
        copier.delete()
    assert objects(data) == set()
    assert list((data.target / "streams").iterdir()) == []


def test_a_stream_that_is_created_again_is_copied_from_its_start(data: TieredServer) -> None:
    """The manifest of its predecessor, without parts, ends at a higher ordinal."""
    copier, _ = three(data)
    for again in (False, True):
        data.client("DEL", "a")
        data.save()
        copier.delete()
        data.add("a", 45)
        copier = data.copier() if again else copier
        copier.run()
        data.check("a", 5)


def test_pages(data: TieredServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectfile, "LARGEST", 300)
    monkeypatch.setattr(section, "FULL", 100)
    monkeypatch.setattr(manifest, "PAGE", 3)
    data.add("a", 500)
    copier = data.copier()
    copier.run()
    for length in (300, 299, 20):
        evict(data, length)
        copier = data.copier(now=copier.now)
        copier.run()
        copier.delete()
        check(data, "a")
        copier.now += 2 * GRACE
        copier.delete()
        copier.delete()
        check(data, "a")
        assert copier.deleting.problems == []
    left = {path.name for path in (data.target / "streams" / "a").iterdir()}
    assert {name for name in left if "page" in name} <= set(listed(data))
    assert len(objects(data)) == len(listed(data)) < 5


def test_objects_of_killed_processes(data: TieredServer) -> None:
    """They are found by name, wait, and are deleted, but not if they have entries that no manifest lists."""
    data.add("a", 25)
    files = FaultyFiles(LocalFiles(str(data.target)))
    copier = data.copier(files)
    files.fail_at = files.calls + 3  # the manifest can't be written
    with pytest.raises(HistoryStoreError):
        copier.run()
    (orphan,) = objects(data)
    copier = data.copier()
    copier.delete()
    assert waiting(copier) == set(), "the only object with these entries"
    data.add("a", 20)
    copier = data.copier()
    copier.run()
    copier.delete()
    assert waiting(copier) == {orphan}
    copier.now = LATER
    copier.delete()
    assert orphan not in objects(data)
    data.check("a", 5)


def test_what_killed_writes_have_left(data: TieredServer) -> None:
    """A process was killed while it wrote an object, or before it removed the first name of a complete one."""
    data.add("a", 25)
    copier = data.copier()
    copier.run()
    (name,) = objects(data)
    folder = data.target / "objects"
    (folder / ".0123456789abcdef").write_bytes(b"half an ob")
    (folder / ".fedcba9876543210").hardlink_to(folder / name)
    copier = data.copier()
    copier.delete()
    assert objects(data) == {name}
    later = folder / ".0011223344556677"
    later.touch()
    copier.delete()
    assert later.exists(), "it is searched at the start of a process, and then once a day"


def test_names_of_others_are_not_touched(data: TieredServer) -> None:
    copier, names = three(data)
    content = (data.target / "objects" / names[0]).read_bytes()
    others = {"notes.txt", "0" * 16 + ".tide", names[0][:-5] + ".bak", f"{99:016x}-{names[0][17:]}"}
    for other in others:
        (data.target / "objects" / other).write_bytes(content)
    data.client("DEL", "a")
    data.save()
    for _ in range(3):
        copier = data.copier(now=copier.now)
        copier.run()
        copier.delete()
        copier.now += 2 * GRACE
    assert objects(data) == others


def test_pins(data: TieredServer) -> None:
    copier, names = three(data)
    pin = data.target / "pins" / "backup.json"
    pin.parent.mkdir()
    evict(data, 20)
    copier.delete()
    copier.now = LATER
    for content in (
        Pin("a backup", CLOCK).encode(), b"damaged", Pin("one", CLOCK, 0, frozenset({names[0]})).encode(),
        Pin("one", CLOCK, LATER + 1, frozenset({names[0]})).encode(),
    ):  # fmt: skip
        pin.write_bytes(content)
        copier.deleting._blocked.clear()
        copier.delete()
        assert names[0] in objects(data)
    assert names[1] not in objects(data)
    copier.now = LATER + 1
    copier.delete()
    assert names[0] in objects(data), "it is examined again later"
    copier.now = LATER + 2 * GRACE
    copier.delete()
    assert objects(data) == {names[2]}


def test_a_store_that_is_older_than_the_history(data: TieredServer) -> None:
    """Its directory was replaced by an older copy: the objects can have the only copy of what it lacks."""
    copier, names = three(data)
    data.client("FLUSHALL")
    data.save()
    version = History(data.target).manifest(b"a")
    assert version is not None
    name = data.target / "streams" / "a" / manifest_name(version.number)
    name.write_bytes(replace(version, offset=1 << 50).encode())
    for end in (5, 1 << 60):  # also after its log has become longer
        copier = data.copier()
        copier.delete(points={LOG: end})
        copier.now = LATER
        copier.delete(points={LOG: end})
        assert "its data directory seems to be an older copy" in copier.deleting.problems[0]
        assert objects(data) == set(names)


def test_the_store_of_a_new_leader_lacks_checkpoints(data: TieredServer, tmp_path: Path) -> None:
    """The streams that it does not have yet are in its log, and other members can have references to their objects."""
    data.add("first", 5)
    lagging = tmp_path / "lagging"
    shutil.copytree(data.copied, lagging)
    copier, names = three(data)
    late = Copier(lagging, data.target, None, 1, LATER)
    late.delete()
    assert (listed(data), waiting(late), late.deleting.problems) == (names, set(), [])
    data.client("DEL", "a")
    data.save()
    copier.delete()
    late = Copier(lagging, data.target, None, 1, LATER)
    late.delete()
    assert objects(data) == set(names), "another member could still need them"
    late = data.copier(epoch=1, now=LATER)
    late.delete()
    assert objects(data) == set()


def test_entries_that_differ_are_kept(data: TieredServer) -> None:
    """Such objects can have the only copy of entries that a failover has lost."""
    for text in ("old", "new"):
        data.client("FLUSHALL")
        for number in range(25):
            data.client("XADD", "a", f"{number + 1}-0", "n", text)
        data.save()
        copier = data.copier()
        copier.run()
        if text == "old":
            (old,) = objects(data)
            found = History(data.target).manifest(b"a")
            assert found is not None
            path = data.target / "streams" / "a" / manifest_name(1)
            path.write_bytes(replace(found, sid=found.sid + 1).encode())  # that of the next stream
    assert "differs from the store" in copier.warnings[0]
    copier.delete()
    copier.now = LATER
    copier.delete()
    assert old in objects(data)
    assert [file.why for file in copier.deletions.current.files] == ["differs"]
    assert copier.deleting.totals.waiting_objects == 0


def test_unconfirmed_deletions_wait(data: TieredServer) -> None:
    copier, names = three(data)
    data.client("DEL", "a")
    data.save()
    copier.delete(offset=10)
    assert (listed(data), waiting(copier)) == (names, set())
    copier.delete()
    copier.now = LATER
    copier.delete(offset=10)
    assert objects(data) == set(names)


def test_clocks(data: TieredServer) -> None:
    """A clock that is set back delays deletions. The times of the files are not used."""
    copier, names = three(data)
    evict(data, 40)
    copier.delete()
    for path in data.target.rglob("*"):
        with suppress(FileNotFoundError):
            os.utime(path, (0, 0))
    copier.delete()
    copier.now = CLOCK - 10 * GRACE
    copier.delete()
    copier.now = CLOCK + GRACE // 2
    copier.delete()
    assert objects(data) == set(names)
    copier.now = LATER
    copier.delete()
    assert objects(data) == set(names[1:])


def test_what_a_manifest_lists_again_is_not_deleted(data: TieredServer) -> None:
    copier, names = three(data)
    before = History(data.target).manifest(b"a")
    evict(data, 40)
    copier.delete()
    assert before is not None
    path = data.target / "streams" / "a" / manifest_name(before.number + 2)
    path.write_bytes(replace(before, number=before.number + 2).encode())
    copier = data.copier(now=LATER)
    data.client("RENAME", "a", "b")  # so that the manifest remains as it is
    data.save()
    copier = data.copier(now=LATER)
    copier.deleting._trim = lambda *_: None  # type: ignore[method-assign]
    copier.delete()
    assert objects(data) == set(names)
    assert waiting(copier) == set()


def test_a_renamed_stream_keeps_its_objects(data: TieredServer) -> None:
    """A replica can have references to them, although the leader has the entries."""
    copier, names = three(data)
    data.client("RENAME", "a", "b")
    data.save()
    copier.delete()
    assert listed(data) == names, "the manifest of the former name remains"
    data.add("a", 25, "new")
    copier = data.copier()
    copier.run()
    data.check("a", 5)
    assert waiting(copier) == set(names)
    copier.now = LATER
    copier.delete()
    assert objects(data) >= set(names)
    data.client("XTRIM", "b", "MAXLEN", 45)
    data.save()
    copier = data.copier(now=LATER)
    copier.delete()
    assert objects(data) >= set(names[1:])
    assert names[0] not in objects(data)
    data.client("DEL", "b")
    data.save()
    copier = data.copier(now=LATER)
    copier.delete()
    assert objects(data) == set(listed(data))


def test_references_of_the_store(data: TieredServer, monkeypatch: pytest.MonkeyPatch) -> None:
    copier, names = three(data)
    data.client("DEL", "a")
    data.save()
    copier.delete()
    monkeypatch.setattr(StoreView, "referenced", lambda *_: ({names[1]}, b""))
    copier.now = LATER
    copier.delete()
    assert objects(data) == {names[1]}
    monkeypatch.undo()
    copier.delete()
    assert objects(data) == {names[1]}, "it is examined again later"
    copier.now = LATER + 2 * GRACE
    copier.delete()
    assert objects(data) == set()


def test_another_owner_pins_what_it_needs(data: TieredServer, monkeypatch: pytest.MonkeyPatch) -> None:
    copier, names = three(data)
    warnings: list[str] = []
    monkeypatch.setattr("persistence.tiering.adopting.references", lambda *_: {names[0]})
    adopt(copier.objects, "7" * 40, data.copied, CLOCK, lambda: None, warnings.append)
    pin = data.target / "pins" / f"server-{'7' * 40}.json"
    content = pin.read_bytes()
    adopt(copier.objects, "7" * 40, data.copied, CLOCK + 1, lambda: None, warnings.append)
    assert (pin.read_bytes(), warnings) == (content, [])
    data.client("DEL", "a")
    data.save()
    copier.delete()
    copier.now = LATER
    copier.delete()
    assert objects(data) == {names[0]}
    monkeypatch.setattr("persistence.tiering.adopting.references", lambda *_: {"other"})
    adopt(copier.objects, "7" * 40, data.copied, CLOCK, lambda: None, warnings.append)
    assert pins.decode(pin.read_bytes()).objects == frozenset({names[0], "other"})
    assert "such as other" in warnings[0]


def test_two_leaders(data: TieredServer) -> None:
    """The one that does not know the newest list of deletions deletes nothing."""
    old, names = three(data)
    new = data.copier(epoch=5)
    new.run()
    evict(data, 40)
    new.delete()
    evict(data, 20)
    old.delete()
    assert "a later leader has written the list of deletions, in epoch 5" in old.deleting.problems[0]
    new.delete()
    assert listed(data) == names[2:]
    stale = data.copier(now=LATER, epoch=5)
    stale.deleting._load(5)
    new.now = LATER
    new.delete()
    assert objects(data) == {names[2]}
    for _ in range(12):  # its next version existed, and was removed
        new.deletions.save(new.deletions.current)
    (data.target / "objects" / names[0]).write_bytes(b"as before")
    for call in (stale.deletions.check_newest, lambda: stale.deletions.save(stale.deletions.current)):
        with pytest.raises(HistoryStoreError, match="another leader uses this prefix"):
            call()
    stale.delete()
    assert names[0] in objects(data)
    check(data, "a")


def test_each_call_fails_once_before_or_after_its_effect(data: TieredServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever call fails, what the manifests list exists, and the next process deletes the rest."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # 5,000 files are written
    data.add("keep", 25)
    now = CLOCK
    before = data.copier(now=now)
    before.run()
    (keep,) = objects(data)

    for after in (False, True):
        fail_at, done = 0, False
        while not done:
            data.add("a", 20)
            data.add("b", 25)
            copier = data.copier(now=now)
            copier.run()
            data.client("XTRIM", "a", "MAXLEN", 12)
            data.client("DEL", "b")
            data.save()
            files = FaultyFiles(LocalFiles(str(data.target)), fail_at, after)
            with suppress(HistoryStoreError):
                copier = data.copier(files, now=now)
                copier.delete()
                check(data, "keep", "a", "b")
                copier.now += 2 * GRACE
                copier.delete()
            done = files.calls <= fail_at
            check(data, "keep", "a", "b")
            now += 3 * GRACE
            for _ in range(2):
                copier = data.copier(now=now)
                copier.run()
                copier.delete()
                copier.now += 2 * GRACE
                copier.delete()
                assert (copier.deleting.problems, copier.problems) == ([], [])
                now += 3 * GRACE
            assert objects(data) == {keep, *listed(data)}, (after, fail_at)
            assert not (data.target / "streams" / "b").exists()
            fail_at += 1
        assert fail_at > 25


def test_damaged_files(data: TieredServer) -> None:
    copier, names = three(data)
    evict(data, 40)
    copier.delete()
    newest = max((data.target / "deletions").iterdir())
    content = newest.read_bytes()
    newest.write_bytes(content[:-3])
    copier = data.copier(now=LATER)
    copier.run()
    copier.delete()
    assert f"{newest.name}: a file of history" in copier.deleting.problems[0]
    assert objects(data) == set(names)
    newest.write_bytes(content)
    path = data.target / "objects" / names[0]
    path.write_bytes(path.read_bytes()[:-1])
    copier.delete()
    copier.delete()
    assert f"{names[0]} can't be deleted" in copier.deleting.problems[0]
    assert objects(data) == set(names)


def test_a_damaged_manifest_protects_its_objects(data: TieredServer) -> None:
    copier, names = three(data)
    evict(data, 40)
    copier.delete()
    (version,) = [path for path in (data.target / "streams" / "a").iterdir() if path.name == manifest_name(4)]
    version.write_bytes(b"damaged")
    copier = data.copier(now=LATER)
    copier.delete()
    assert manifest_name(4) in copier.deleting.problems[0]
    assert objects(data) == set(names)


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.replace(b"objects/", b"owner.js"),
        lambda found: found.replace(b'"removed"', b'"because"'),
        lambda found: found.replace(b'"files":[[', b'"files":[[1,'),
    ],
)
def test_invalid_lists(data: TieredServer, change: Callable[[bytes], bytes]) -> None:
    copier, _ = three(data)
    evict(data, 20)
    copier.delete()
    line = change(copier.deletions.current.encode().split(b"\n")[0])
    with pytest.raises(CorruptError, match="list of deletions"):
        deletions.decode(b"%b\n%b\n" % (line, xxh3_64_hexdigest(line).encode()))
    assert deletions.decode(copier.deletions.current.encode()) == copier.deletions.current


def test_pins_and_lists_that_are_invalid() -> None:
    assert pins.decode(Pin("x", 1, 2, frozenset({"b", "a"})).encode()) == Pin("x", 1, 2, frozenset({"b", "a"}))
    with pytest.raises(CorruptError):
        pins.decode(Deletions("5e" * 20).encode())
    assert CopiedTo(b"a", 1, 2).number == 1
