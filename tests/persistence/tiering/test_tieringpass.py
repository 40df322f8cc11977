"""Passes over the store of a server: what they copy, and that a later one continues."""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from persistence.tiering import source
from persistence.tiering.objectstore import HistoryStoreError, LocalFiles
from persistence.tiering.source import DueNodes
from storage.history import manifest, objectfile, section
from storage.streams.tierafter import TierAfter
from tests.persistence.tiering.kit import FaultyFiles, History, TieredServer


def test_sealed_nodes_are_copied_and_the_last_node_is_not(data: TieredServer) -> None:
    data.add("a", 95)
    data.add("b", 9)
    data.client("SET", "s", "no stream")
    copier = data.copier()
    assert copier.run()
    data.check("a", 5)
    assert data.history("b") == []
    data.add("a", 10)
    assert copier.run()
    data.check("a", 5)
    assert copier.state.totals.objects == 2
    assert copier.run()
    assert copier.state.totals.objects == 2, "nothing was due"


def test_a_new_process_continues(data: TieredServer) -> None:
    data.add("a", 95)
    data.copier().run()
    data.add("a", 95)
    data.add("b", 25)
    copier = data.copier()
    copier.run()
    assert copier.warnings == []
    assert copier.state.totals.entries == 90 + 20
    data.check("a", 10)
    data.check("b", 5)


def test_binary_fields_and_names(data: TieredServer) -> None:
    key = b"\xff/%. " + b"long" * 100
    for number in range(12):
        data.client("XADD", key, "*", b"\x00\r\n", b"", "f", "1", "f", str(number))
    data.save()
    data.copier().run()
    assert History(data.target).entries(key) == data.client("XRANGE", key, "-", "+")[:10]


def test_deleted_and_evicted_entries(data: TieredServer) -> None:
    data.add("a", 95)
    ids = [entry[0] for entry in data.entries("a")]
    data.client("XDEL", "a", *ids[:3], *ids[15:40], *ids[88:90])
    data.client("XTRIM", "a", "MINID", ids[5])
    data.save()
    data.copier().run()
    data.check("a", 5)
    data.client("XTRIM", "a", "MINID", ids[92])  # more than what was copied
    data.add("a", 40)
    data.copier().run()
    data.check("a", 5)
    found = History(data.target).manifest(b"a")
    assert found is not None
    assert (found.first_ord, len(found.parts)) == (92, 1)


def test_a_stream_that_was_created_again_with_the_same_ids_is_copied_again(data: TieredServer) -> None:
    for text in ("old", "new"):
        for number in range(25):  # the last copied node is equal
            data.client("XADD", "a", f"{number + 1}-0", "n", text if number < 10 else "same")
        data.save()
        copier = data.copier()
        copier.run()
        data.check("a", 5)
        data.client("DEL", "a")
    assert any("differs from the store" in warning for warning in copier.warnings)


def test_entries_that_were_evicted_leave_the_manifest(data: TieredServer) -> None:
    copier = data.copier()
    for _ in range(3):
        data.add("a", 20)
        copier.run()
    data.client("XTRIM", "a", "MAXLEN", 35)
    data.add("a", 20)
    copier.run()
    copier.delete()
    data.check("a", 10)
    found = History(data.target).manifest(b"a")
    assert found is not None
    assert [part.first_ord for part in found.parts] == [10, 30, 50]


def test_a_stream_that_was_created_again(data: TieredServer) -> None:
    for again in (False, True):  # with the process that knows the first one, and with another one
        copier = data.copier()
        data.add("a", 45, "old")
        copier.run()
        data.client("DEL", "a")
        data.add("a", 65, "new")
        copier = data.copier() if again else copier
        copier.run()
        data.check("a", 5)
        assert "differs from the store" in copier.warnings[0]
        data.client("DEL", "a")


def test_a_stream_that_is_created_again_during_a_pass(data: TieredServer) -> None:
    data.add("a", 45, "old")
    copier = data.copier()
    steps = count()

    def progress() -> None:
        if next(steps) == 1:  # the first section was added
            data.client("DEL", "a")
            data.add("a", 65, "new")

    copier.progress = progress
    copier.run()
    data.check("a", 5)
    assert copier.problems == []
    assert copier.run()
    assert len(copier.state.copied) == 1, "the process remembers a stream that is gone"


def test_a_manifest_that_is_damaged_during_a_pass(data: TieredServer) -> None:
    data.add("a", 25)
    copier = data.copier()
    copier.run()
    data.add("a", 20)
    version = data.target / "streams" / "a" / manifest.manifest_name(1)
    content = version.read_bytes()
    version.write_bytes(content[:-1])
    copier.run()
    assert len(copier.problems) == 1
    objects = copier.state.totals.objects
    copier.run()
    assert (len(copier.problems), copier.state.totals.objects) == (1, objects)
    version.write_bytes(content)
    copier.run()
    data.check("a", 5)


def test_a_renamed_stream(data: TieredServer) -> None:
    copier = data.copier()
    data.add("a", 25)
    copier.run()
    data.client("RENAME", "a", "b")
    data.add("b", 10)
    copier.run()
    data.check("b", 5)


def test_only_old_entries(data: TieredServer) -> None:
    now = int(time.time() * 1000)
    for number in range(40):
        data.client("XADD", "a", f"{now - 40_000 + 1000 * number}-0", "n", str(number))
    data.save()
    data.copier().run(DueNodes(now, TierAfter(False, 15_000)))
    data.check("a", 20)  # the node of 20 to 29 begins before that time, but ends after it


def sizes(data: TieredServer) -> list[int]:
    """Return the sizes of the nodes of the only stream in the store, in order."""
    with source.opened(data.copied) as view:
        (stream,) = view.streams(lambda _its: True)
        return [len(view._node(key)) for key, _, _ in view._keys(stream.sid, 0)]


def test_only_what_exceeds_a_size(data: TieredServer) -> None:
    """The newest nodes that together have the size stay, and the last node also counts."""
    data.add("a", 95)
    stored = sizes(data)
    assert len(stored) == 10
    now = int(time.time() * 1000)
    data.copier().run(DueNodes(now, TierAfter(True, sum(stored))))
    assert data.history("a") == []
    for staying in (9, 5, 1):
        data.copier().run(DueNodes(now, TierAfter(True, sum(stored[-staying:]))))
        data.check("a", 10 * staying - 5)
    data.add("a", 5)
    data.copier().run(DueNodes(now, TierAfter(True, 0)))
    data.check("a", 10)


def test_streams_with_their_own_setting(data: TieredServer) -> None:
    """It has precedence over the default, which the other streams have."""
    data.client("TCFG", "soon", "TIER", "AGE", 0)
    data.client("TCFG", "late", "TIER", "BYTES", 1 << 40)
    now = int(time.time() * 1000)
    for key in ("default", "soon", "late"):
        data.add(key, 45)
    data.copier().run(DueNodes(now, TierAfter(False, 3_600_000)))
    assert (data.history("default"), data.history("late")) == ([], [])
    data.check("soon", 5)
    data.copier().run(DueNodes(now, TierAfter(False, 0)))
    assert data.history("late") == []
    data.check("default", 5)
    data.client("TCFG", "late", "TIER", "DEFAULT")
    data.save()
    data.copier().run(DueNodes(now, TierAfter(False, 0)))
    data.check("late", 5)


def test_unconfirmed_records_wait(data: TieredServer) -> None:
    data.add("a", 25)
    copier = data.copier()
    assert not copier.run(offset=10)
    assert data.history("a") == []
    assert copier.run(offset=1 << 60)
    data.check("a", 5)


def test_sections_end_with_nodes(data: TieredServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(section, "FULL", 800)
    data.add("a", 40, "x" * 10)  # nodes of about 300 bytes
    data.add("a", 1, "x" * 2000)
    data.add("a", 30, "x" * 10)
    data.client("XDEL", "a", data.entries("a")[19][0])
    data.save()
    data.copier().run()
    (path,) = (data.target / "objects").iterdir()
    covered = [(found.head.first_ord, found.head.end_ord) for found in objectfile.verify(path.read_bytes())]
    assert covered == [(0, 20), (20, 40), (40, 41), (41, 60), (60, 70)]
    data.check("a", 1)


def test_several_objects_and_pages(data: TieredServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectfile, "LARGEST", 300)
    monkeypatch.setattr(section, "FULL", 100)
    monkeypatch.setattr(manifest, "PAGE", 3)
    data.add("a", 500)
    data.add("b", 45)
    copier = data.copier()
    copier.run()
    assert copier.state.totals.objects > 20
    data.check("a", 10)
    data.check("b", 5)
    data.add("a", 55)
    data.copier().run()
    data.check("a", 5)


def test_other_streams_are_copied_when_one_is_damaged(data: TieredServer) -> None:
    data.add("a", 25)
    data.add("b", 25)
    copier = data.copier()
    copier.run()
    version = data.target / "streams" / "a" / manifest.manifest_name(1)
    version.write_bytes(version.read_bytes()[:-5])
    data.add("a", 10)
    data.add("b", 10)
    copier = data.copier()
    copier.run()
    assert len(copier.problems) == 1
    assert "stream b'a': streams/a/00000000000000000001.json" in copier.problems[0]
    data.check("b", 5)
    version.unlink()
    data.copier().run()
    data.check("a", 5)


@pytest.mark.parametrize("damage", ["missing", "changed", "truncated"])
def test_a_damaged_object_is_replaced(data: TieredServer, damage: str) -> None:
    data.add("a", 25)
    data.copier().run()
    (path,) = (data.target / "objects").iterdir()
    if damage == "missing":
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        content[60] ^= 1
        path.write_bytes(content[:90] if damage == "truncated" else content)
    data.add("a", 20)
    copier = data.copier()
    copier.run()
    assert path.name in copier.warnings[0]
    data.check("a", 5)


def test_an_object_store_that_changes_bytes(data: TieredServer) -> None:
    data.add("a", 25)
    files = FaultyFiles(LocalFiles(str(data.target)))
    files.change = lambda name, content: content.replace(b"n", b"m", 1) if "objects/" in name else content
    with pytest.raises(Exception, match=r"objects/.* differs|checksum"):
        data.copier(files).run()
    assert History(data.target).manifest(b"a") is None


def test_each_call_fails_once_before_or_after_its_effect(data: TieredServer) -> None:
    """Whichever call fails, the history is valid, and the next process completes it."""
    data.add("a", 25)
    data.copier().run()
    calls = 13
    for after in (False, True):
        for fail_at in range(calls):
            data.add("a", 20)
            data.add("b", 10)
            files = FaultyFiles(LocalFiles(str(data.target)), fail_at, after)
            with suppress(HistoryStoreError):  # a driver repeats some calls, which then have no error
                data.copier(files).run()
            assert fail_at < files.calls <= calls + 4
            for key in ("a", "b"):
                history = data.history(key)
                assert history == data.entries(key)[: len(history)]
            copier = data.copier()
            copier.run()
            assert copier.warnings == []
            assert copier.problems == []
            data.check("a", 5)
            assert len(data.history("b")) == len(data.entries("b")) - 10


def test_two_leaders(data: TieredServer, tmp_path: Path) -> None:
    data.add("a", 25)
    first, second = data.copier(epoch=4), data.copier(epoch=5)
    first.run()
    data.add("a", 20)
    second.run()
    data.add("a", 20)
    with pytest.raises(Exception, match="another leader uses this prefix"):
        first.run()
    data.check("a", 25)
    with pytest.raises(Exception, match="a later leader has written the history, in epoch 5"):
        data.copier(epoch=4).run()
    second.run()
    data.check("a", 5)
