"""Invariant: of a generation that is over nothing stays, and of the one that goes on nothing goes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from uuid import uuid4

import pytest

pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[jobs]')")
pytest.importorskip("fsspec", reason="no fsspec here (pip install 'tidelog[jobs]')")

from tests.tidelog.jobs.s3kit import s3_bucket
from tests.tidelog.jobs.snapshotkit import Job
from tidelog.jobs.snapshots import make, owners
from tidelog.jobs.snapshots.cleanup import clear as clear_objects
from tidelog.jobs.snapshots.objects import ObjectStore
from tidelog.jobs.snapshots.process import take_lock
from tidelog.jobs.store import StateStore
from tidelog.jobs.store.cleanup import clear
from tidelog.testing import Server


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_bucket() as url:
        yield url


@pytest.fixture(params=["memory", "path", "file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return f"{request.getfixturevalue('s3')}/{uuid4()}/states"
    return {"memory": f"memory://{uuid4()}/x", "path": f"{tmp_path}/o", "file": f"file://{tmp_path}/o"}[request.param]


# -- names from the server ----------------------------------------------------------------------------------------
def test_nothing_outside_of_the_state_directory_is_removed(tmp_path: Path) -> None:
    state, outside = tmp_path / "state", tmp_path / "outside"
    for folder in (outside / "1" / "0", state / "deep" / "job" / "1", tmp_path / "1" / "0"):
        folder.mkdir(parents=True)
    (state / "linked").symlink_to(outside)
    (state / "real").mkdir()
    (state / "real" / "1").symlink_to(outside)
    names = (str(outside), "../outside", "..", ".", "", "deep/job", "linked", "real", "x\0y")
    clear(state, dict.fromkeys(names, 9))
    assert (outside / "1" / "0").is_dir()
    assert (tmp_path / "1" / "0").is_dir()
    assert (state / "deep" / "job" / "1").is_dir()


# -- the object store ----------------------------------------------------------------------------------------------
MINE = {"clicks": "5f0c"}
OURS = ("a/1/0/x.lmdb.zst", "a/1/0/x.json", "a/1/1/y.json", "a/2/checkpoint/offsets/0", "a/2/checkpoint/s/0/0/1.delta")
OTHERS = ("a/3/0/z.json", "a/11/0/z.json", "a/check-1f", "a/notes/1/0", "a/01x/0", "b/1/0/x.json", "ab/1/0/x.json")


def test_objects_of_former_generations_are_removed(url: str) -> None:
    objects = ObjectStore(url, 20.0)
    for name in (*OURS, *OTHERS):
        objects.write(name, b"x")
    for generation in (1, 2):
        owners.write(objects, "a", generation, MINE)
    assert clear_objects(objects, "a", 2, mine)
    assert sorted(objects.below("", 100)) == sorted(OTHERS)
    assert set(objects.folders("a")) == {"3", "11", "notes", "01x"}
    assert clear_objects(objects, "a", 2, mine)
    assert clear_objects(objects, "nobody", 9, mine)


def mine(topics: Mapping[str, str]) -> bool:
    return topics == MINE


def test_what_does_not_say_that_it_is_ours_stays(url: str) -> None:
    """Two servers have jobs of one name, and their engines one object store."""
    objects = ObjectStore(url, 20.0)
    objects.write("a/1/0/x.json", b"x")
    objects.write("a/2/0/x.json", b"x")
    owners.write(objects, "a", 2, {"clicks": "another"})
    objects.write("a/3/owner.json", b"{")
    before = objects.below("", 100)
    assert clear_objects(objects, "a", 3, mine)
    assert objects.below("", 100) == before


def test_a_call_removes_so_many_at_most(url: str) -> None:
    objects = ObjectStore(url, 20.0)
    for at in range(5):
        objects.write(f"a/1/{at}/x.json", b"x")
    objects.write("a/2/0/x.json", b"x")
    for generation in (1, 2):
        owners.write(objects, "a", generation, MINE)
    left = []
    while not clear_objects(objects, "a", 2, mine, most=2):
        left.append(len(objects.below("a", 100)))
    assert left[:2] == [6, 4]
    assert objects.below("a", 100) == []


# -- a machine's disk ----------------------------------------------------------------------------------------------
def stored(folder: Path, generation: int, partition: int = 0, job: str = "a") -> Path:
    path = folder / job / str(generation) / str(partition) / "0"
    with StateStore.open(path, generation=generation) as store:
        store.commit(store.begin(1), 1, "run")
    return path


def test_states_of_former_generations_are_removed(tmp_path: Path) -> None:
    gone = [stored(tmp_path, 1), stored(tmp_path, 1, 1), stored(tmp_path, 2)]
    kept = [stored(tmp_path, 3), stored(tmp_path, 1, job="b")]
    (tmp_path / "a" / "2" / "checkpoint" / "offsets").mkdir(parents=True)
    (tmp_path / "a" / "notes").mkdir()
    os.symlink(kept[0].parents[1], tmp_path / "a" / "02")
    assert clear(tmp_path, {"a": 2, "nobody": 7})
    assert not any(path.exists() for path in gone)
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"3", "notes", "02"}
    for path, generation in zip(kept, (3, 1), strict=True):
        with StateStore.open(path, generation=generation) as store:
            assert store.version.epoch == 1
    assert clear(tmp_path, {"b": 1})
    assert not (tmp_path / "b").exists()


def test_the_files_of_a_state_that_was_removed_are_let_go(tmp_path: Path) -> None:
    """By a process that keeps its stores open from task to task: the disk has the room back."""
    path = stored(tmp_path, 1)
    assert any(str(path) in name for name in opened())
    shutil.rmtree(path)  # by another process
    stored(tmp_path, 2)
    assert not any(str(path) in name for name in opened())


def opened() -> list[str]:
    """The files that this process has open."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(each))
        except FileNotFoundError:  # that of the listing
            pass
    return found


def test_what_a_zombie_holds_stays_until_it_has_let_it_go(tmp_path: Path) -> None:
    path, other = stored(tmp_path, 1), stored(tmp_path, 1, 1)
    with StateStore.open(path, generation=1) as zombie:
        assert not clear(tmp_path, {"a": 1})
        assert not other.exists()
        zombie.commit(zombie.begin(2), 2, "run")
    maker = take_lock(path.parent)
    assert maker is not None
    assert not clear(tmp_path, {"a": 1})
    assert path.exists()
    os.close(maker)
    assert clear(tmp_path, {"a": 1})
    assert not (tmp_path / "a").exists()


def test_a_zombie_that_begins_again_finds_nothing(tmp_path: Path) -> None:
    """What it makes anew is empty, and goes the next time."""
    path = stored(tmp_path, 1)
    assert clear(tmp_path, {"a": 1})
    assert stored(tmp_path, 1) == path
    with StateStore.open(path, generation=1) as store:
        assert store.version.epoch == 1
    assert clear(tmp_path, {"a": 1})
    assert not path.exists()


def test_a_maker_whose_snapshots_are_removed_meanwhile(tidelog_server: Server, tmp_path: Path) -> None:
    """It can make another one, which goes the next time."""
    with tidelog_server.client() as client:
        job = Job(client, tidelog_server.url, tmp_path)
        job.change(topics=MINE)
        job.append(2)
        job.commit()
        make(job.request)
        assert clear_objects(job.objects, "count", 1, mine)
        job.commit()
        make(job.request)
        assert len(job.objects.below("count", 10)) == 3
        assert clear_objects(job.objects, "count", 1, mine)
        assert job.objects.below("count", 10) == []
