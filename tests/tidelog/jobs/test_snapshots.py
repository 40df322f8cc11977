"""Snapshots made in this process, of a real store, with a real server: what is kept, restored and given up."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[jobs]')")
pytest.importorskip("fsspec", reason="no fsspec here (pip install 'tidelog[jobs]')")

from tests.tidelog.jobs.snapshotkit import RUN, Job, restored
from tidelog import Client, StreamId
from tidelog.jobs import keys
from tidelog.jobs.commits import CLOSED
from tidelog.jobs.errors import SupersededError
from tidelog.jobs.snapshots import SnapshotError, creation, make, manifests, retention
from tidelog.jobs.store import StateStore, StoreUnusableError, transactions
from tidelog.jobs.store.environments import StoreEnvironment, forget
from tidelog.testing import Server
from tidelog.transport.leader import LeaderConnection


@pytest.fixture
def job(tidelog_server: Server, client: Client, tmp_path: Path) -> Job:
    return Job(client, tidelog_server.url, tmp_path)


@pytest.mark.parametrize("kind", ["path", "file", "memory"])
def test_what_was_made_is_restored(job: Job, tmp_path: Path, kind: str) -> None:
    job.change(url={"path": f"{tmp_path}/o", "file": f"file://{tmp_path}/o", "memory": f"memory://{uuid4()}"}[kind])
    job.commit(5)
    manifest = make(job.request)
    assert (manifest.epoch, manifest.run, manifest.previous) == (5, RUN, manifests.PreviousVersion(4, RUN))
    assert manifest.inputs == {"clicks": ("50.0", "40.0")}
    complete, half = manifests.listed(job.objects, job.folder)
    assert [each.name.partition("-")[0] for each in complete] == ["000000000005"]
    assert half == []
    assert manifest.stored == job.objects.names(job.folder)[complete[0].name + manifests.OBJECT]
    found = restored(job, 5, tmp_path / "back")
    assert found is not None
    epoch, run, data = found
    assert (epoch, run, data[b"\x00at"], len(data)) == (5, RUN, b"i5", 6)
    assert job.record() == {
        "kept": [{"name": complete[0].name, "epoch": 5, "time": manifest.time, "size": manifest.size,
                  "stored": manifest.stored}],
        "needs": {"clicks": "50.0"}, "error": "", "since": 0,
    }  # fmt: skip
    assert make(job.request) == manifest  # nothing has changed: no second one
    assert job.kept() == [5]


def test_the_last_ones_are_kept_and_the_oldest_of_them_says_what_may_go(job: Job, tmp_path: Path) -> None:
    job.append(12)
    job.commit(2)
    make(job.request)
    assert job.kept() == [2]
    assert (job.group(), job.marked()) == (job.end(2), [2])
    for epoch in (4, 6, 9, 12):
        job.commit(epoch - job.at)
        make(job.request)
    assert job.kept() == [12, 9, 6]
    assert (job.group(), job.marked()) == (job.end(6), [6, 7, 8, 9, 10, 11, 12])
    files = job.objects.names(job.folder)
    assert (len(files), {int(name[:12]) for name in files}) == (6, {12, 9, 6})
    for at_most, expected in {12: 12, 11: 12, 10: 9, 8: 9, 7: 6, 6: 6, 5: 6}.items():  # one more can be undone
        found = restored(job, at_most, tmp_path / "back")
        assert found is not None, at_most
        assert found[0] == expected, at_most
    assert restored(job, 4, tmp_path / "back") is None


def test_an_epoch_that_is_not_published_yet(job: Job, tmp_path: Path) -> None:
    job.append(4)
    job.commit(2)
    job.commit(publish=False)
    make(job.request)
    assert job.kept() == [3]
    assert (job.group(), job.marked()) == (job.end(2), [2])  # epoch 3 may have to be undone, and read again
    found = restored(job, 2, tmp_path / "back", published=lambda epoch, run: (epoch, run) == (2, RUN))
    assert found is not None
    assert found[:2] == (3, RUN)
    assert restored(job, 1, tmp_path / "back") is None
    job.publish(3)
    job.commit()
    job.change(keep=1)
    make(job.request)
    assert (job.group(), job.marked()) == (job.end(4), [4])


def test_an_attempt_that_was_not_published_is_the_epoch_before(job: Job, tmp_path: Path) -> None:
    """What its snapshot needs is retained: the only newer one may be damaged."""
    job.append(9)
    job.commit(5)
    job.commit(run="an attempt", publish=False)
    make(job.request)
    with StateStore.open(job.path) as store:
        store.undo()
    job.at = 5
    job.commit(4)
    make(job.request)
    assert job.kept() == [9, 6]
    assert (job.group(), job.marked()) == (job.end(5), [5, 6, 7, 8, 9])
    spoil_truncated(Path(job.request.url) / manifests.listed(job.objects, job.folder)[0][0].object)
    found = restored(job, 9, tmp_path / "back", published=lambda epoch, run: (epoch, run) == (5, RUN))
    assert found is not None
    assert found[:2] == (6, "an attempt")


def test_what_another_run_has_published(job: Job, tmp_path: Path) -> None:
    """The store of a zombie is worth the epoch before. Only one of another history is of no use."""
    job.append(5)
    job.commit(2)
    make(job.request)
    job.commit(run="zombie", publish=False)
    job.publish(3, "other")
    make(job.request)
    assert job.kept() == [3, 2]
    assert job.group() == job.end(2)
    zombie = manifests.load(job.objects, manifests.listed(job.objects, job.folder)[0][0])
    assert zombie is not None
    servers = LeaderConnection(job.request.access, "test")
    log = retention.ReplayLog(servers, "count", 1, 0)
    assert retention.needs(log, zombie) == {"clicks": str(job.end(2))}  # what undoing it needs
    assert retention.trim(servers, log, zombie) == 0
    servers.close()
    runs = {1: RUN, 2: RUN, 3: "other"}
    found = restored(job, 3, tmp_path / "back", published=lambda epoch, run: runs[epoch] == run)
    assert found is not None
    assert found[:2] == (3, "zombie")  # to be undone, to 2
    runs[2] = "another history"
    found = restored(job, 3, tmp_path / "back", published=lambda epoch, run: runs[epoch] == run)
    assert found is not None
    assert found[:2] == (2, RUN)  # to be undone, to 1
    runs[1] = "another history"
    assert restored(job, 3, tmp_path / "back", published=lambda epoch, run: runs[epoch] == run) is None


def test_snapshots_of_a_history_that_the_server_has_lost(job: Job, tmp_path: Path) -> None:
    """The server was restored from a backup: epochs beyond the last one don't push out the new ones."""
    job.commit(9)
    make(job.request)
    job.client.redis.delete(job.log)
    for epoch in range(1, 4):
        job.publish(epoch)
    job.path = job.path.with_name("1")
    job.change(path=str(job.path), keep=1)
    job.at = 0
    job.commit(3, publish=False)
    make(job.request)
    assert job.kept() == [3]
    assert len(job.objects.names(job.folder)) == 4  # nothing was removed in haste
    job.change(leftover=-1.0)
    make(job.request)
    assert len(job.objects.names(job.folder)) == 2


def spoil_truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def spoil_emptied(path: Path) -> None:
    path.write_bytes(b"")


def spoil_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def spoil_longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more")


def spoil_gone(path: Path) -> None:
    path.unlink()


def spoil_checksum(path: Path) -> None:
    manifest = path.with_name(path.name.removesuffix(manifests.OBJECT) + manifests.MANIFEST)
    manifest.write_text(json.dumps(json.loads(manifest.read_bytes()) | {"sha256": "0" * 64}))


def spoil_manifest_half(path: Path) -> None:
    spoil_truncated(path.with_name(path.name.removesuffix(manifests.OBJECT) + manifests.MANIFEST))
    os.truncate(path.with_name(path.name.removesuffix(manifests.OBJECT) + manifests.MANIFEST), 100)


def spoil_manifest_gone(path: Path) -> None:
    path.with_name(path.name.removesuffix(manifests.OBJECT) + manifests.MANIFEST).unlink()


def spoil_run(path: Path) -> None:
    manifest = path.with_name(path.name.removesuffix(manifests.OBJECT) + manifests.MANIFEST)
    manifest.write_text(json.dumps(json.loads(manifest.read_bytes()) | {"run": "somebody"}))


def spoil_format(path: Path) -> None:
    manifest = path.with_name(path.name.removesuffix(manifests.OBJECT) + manifests.MANIFEST)
    manifest.write_text(manifest.read_text().replace("format 1", "format 2"))


SPOIL = [
    spoil_truncated, spoil_emptied, spoil_bit, spoil_longer, spoil_gone, spoil_checksum, spoil_manifest_half,
    spoil_manifest_gone, spoil_run, spoil_format,
]  # fmt: skip


@pytest.mark.parametrize("spoil", SPOIL)
def test_a_damaged_snapshot_is_passed_over(job: Job, tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    for _ in range(2):
        job.commit(3)
        make(job.request)
    newest, before = manifests.listed(job.objects, job.folder)[0]
    spoil(Path(job.request.url) / newest.object)
    found = restored(job, 6, tmp_path / "back")
    assert found is not None
    assert found[0] == 3
    spoil(Path(job.request.url) / before.object)
    back = tmp_path / "back"
    back.mkdir()
    (back / "mine").write_text("untouched")
    assert restored(job, 6, back) is None
    assert [path.name for path in back.iterdir()] == ["mine"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("back")] == ["back"]


def test_what_is_there_is_replaced(job: Job, tmp_path: Path) -> None:
    job.commit(3)
    make(job.request)
    back = tmp_path / "back"
    back.mkdir()
    (back / "data.mdb").write_bytes(b"old")
    (back / "lock.mdb").write_bytes(b"old")
    found = restored(job, 3, back)
    assert found is not None
    assert found[0] == 3
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("back")] == []


def test_leftovers_go_when_they_are_old(job: Job) -> None:
    """And what is not ours stays."""
    job.commit(3)
    old = "000000000001-20200101T000000Z-00000000"
    for name in (old + manifests.OBJECT, "000000000001-20990101T000000Z-00000000.lmdb.zst", "readme.txt"):
        job.objects.write(f"{job.folder}/{name}", b"half")
    job.objects.write(f"{job.folder}/{old[:-1]}1.json", b"half")
    make(job.request)
    left = {name for name in job.objects.names(job.folder) if "000000003" not in name}
    assert left == {"000000000001-20990101T000000Z-00000000.lmdb.zst", "readme.txt"}


def test_an_object_store_that_refuses_is_told(job: Job, tmp_path: Path) -> None:
    job.append(5)
    job.commit(2)
    make(job.request)
    url = job.request.url
    (tmp_path / "file").write_text("in the way")
    job.commit(2)
    job.change(url=f"{tmp_path}/file/x")
    with pytest.raises(SnapshotError, match="can't"):
        make(job.request)
    since = job.record()["since"]
    assert "can't" in job.record()["error"]
    with pytest.raises(SnapshotError):
        make(job.request)
    assert job.record()["since"] == since > 0
    assert (job.kept(), job.group(), job.marked()) == ([2], job.end(2), [2, 3, 4])
    job.change(url=url)
    make(job.request)
    assert (job.record()["error"], job.record()["since"], job.kept()) == ("", 0, [4, 2])


def test_a_store_that_is_not_there_is_told(job: Job) -> None:
    with pytest.raises(StoreUnusableError):
        make(job.request)
    assert "is not a state store" in job.record()["error"]


def test_a_topic_that_all_partitions_read(tidelog_server: Server, client: Client, tmp_path: Path) -> None:
    """Its group goes to the lowest need, and stays until each partition has a snapshot."""
    both = [Job(client, tidelog_server.url, tmp_path, at, 2) for at in (0, 1)]
    both[0].append(8)
    for job in both:
        job.ids = both[0].ids
        job.change(shared=("clicks",))
        job.commit(2)
    make(both[0].request)
    assert both[0].group() == StreamId(0)
    make(both[1].request)
    assert both[0].group() == both[0].end(2)
    for job in both:
        job.change(keep=1)
    both[0].commit(6)
    make(both[0].request)
    assert both[0].group() == both[0].end(2)
    both[1].commit(3)
    make(both[1].request)
    assert both[0].group() == both[0].end(5)


def test_a_group_that_is_gone_is_made_anew(job: Job) -> None:
    job.append(3)
    job.commit(3)
    job.client.tgroup_destroy(job.stream, "job:count")
    make(job.request)
    assert job.group() == job.end(3)


def test_a_later_generation_is_left_alone(job: Job) -> None:
    job.append(3)
    job.commit(3)
    job.client.redis.set(keys.snapshots("count"), '{"generation": 2, "partitions": {}}')
    with pytest.raises(SupersededError):
        make(job.request)
    assert job.group() == StreamId(0)
    assert len(job.marked()) == 3
    job.client.redis.delete(keys.snapshots("count"))
    job.change(generation=2)
    job.publish(1)
    job.change(generation=1)
    with pytest.raises(SupersededError):
        make(job.request)
    assert job.client.redis.get(keys.snapshots("count")) is None


def test_a_generation_that_was_closed_is_left_alone(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one has not published anything yet: it begins with entries that this one's snapshots don't need."""
    job.append(3)
    job.commit(3)

    def close() -> None:
        job.client.tstage("closing", 1000, keys.events("count"), ["kind"], [["reset"]])
        job.client.tpublish(keys.fence("count", 1), CLOSED, "closing")

    pruned = creation.prune

    def closed_meanwhile(request: Any, objects: Any, replay: Any) -> Any:
        raise AssertionError("nothing is given up")

    upload = creation.upload

    def slow(*given: Any) -> None:
        upload(*given)
        close()

    monkeypatch.setattr(creation, "upload", slow)
    monkeypatch.setattr(creation, "prune", closed_meanwhile)
    with pytest.raises(SupersededError):
        make(job.request)
    monkeypatch.setattr(creation, "prune", pruned)
    with pytest.raises(SupersededError):  # it is closed from the start
        make(job.request)
    assert job.group() == StreamId(0)
    assert len(job.marked()) == 3


def test_a_store_of_another_generation_or_boot(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.commit()
    job.change(generation=2)
    with pytest.raises(StoreUnusableError, match="generation 1, not 2"):
        make(job.request)
    job.client.redis.delete(keys.snapshots("count"))
    job.change(generation=1)
    with monkeypatch.context() as patch:
        patch.setattr("tidelog.jobs.snapshots.creation.boot_id", lambda: "another")
        with pytest.raises(StoreUnusableError, match="before the machine was restarted"):
            make(job.request)
    make(job.request)
    assert job.kept() == [1]


def test_a_store_that_is_torn(job: Job, tmp_path: Path) -> None:
    """Copied between the parts of a large epoch: the copy is the version before, which is found when it is opened."""
    job.commit(3)
    wrote = transactions.apply
    calls = 0

    def cut(txn: transactions.Txn, env: StoreEnvironment, part: transactions.MutationPart) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        wrote(txn, env, part)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidelog.jobs.store.store.apply", cut)
        store = StateStore.open(job.path, cache=1 << 20)
        changes = store.begin(1)
        keys_ = [b"\x00at", *(b"\x00large%d" % n for n in range(3000))]
        changes.put(keys_, [b"b" * 1000 for _ in keys_])
        with pytest.raises(KeyboardInterrupt):
            store.commit(changes, 4, RUN)
        store.close()
        forget(job.path)
    assert calls == 3
    manifest = make(job.request)
    assert (manifest.epoch, manifest.previous) == (3, None)
    found = restored(job, 3, tmp_path / "back")
    assert found is not None
    assert (found[0], found[2][b"\x00at"], len(found[2])) == (3, b"i3", 4)


def test_markers_of_two_generations_in_one_log(job: Job) -> None:
    job.append(7)
    for epoch in range(1, 6):
        job.publish(epoch)
    job.change(generation=2)
    job.commit(6)
    job.path = job.path.with_name("x")
    make(job.request)
    assert job.kept() == [6]
    assert (job.group(), job.marked()) == (job.end(6), [6])


def test_many_makers_change_one_record(tidelog_server: Server, client: Client, tmp_path: Path) -> None:
    jobs = [Job(client, tidelog_server.url, tmp_path, at, 8) for at in range(8)]
    for job in jobs:
        job.commit(2)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda job: make(job.request), jobs))
    assert [job.kept() for job in jobs] == [[2]] * 8
