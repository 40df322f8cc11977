"""Links to the objects of another prefix, their pin, and its end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from persistence.tiering.deletionlist import DeletionList
from persistence.tiering.linking import LinkRequest, ObjectLinks
from persistence.tiering.objectstore import Files, HistoryStore, HistoryStoreError, LocalFiles
from resp.errors import CorruptError
from storage.history import owner, pins
from storage.history.deletions import WaitingFile
from tests.persistence.tiering.kit import CLOCK, GRACE, SERVER, Copier, FaultyFiles, TieredServer
from tests.tidelog.jobs.s3kit import s3_bucket

MOVE = "a1" * 16
OTHER = "b2" * 16
SOURCE = "c3" * 20  # the ID of the group that has the slots


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket() as url:
        yield url


class Target:
    """The prefix of the group that gets links."""

    def __init__(self, url: str, files: Files | None = None) -> None:
        self.warnings: list[str] = []
        self.store = HistoryStore(url, 30, lambda: None)
        if files is not None:
            self.store._files = files
        self.deletions = DeletionList(self.store, SERVER, lambda: CLOCK)
        self.deletions.epoch, self.deletions.grace = 7, GRACE
        self.links = ObjectLinks(self.store, self.deletions, lambda: None, self.warnings.append, lambda: CLOCK)

    def link(self, url: str, *objects: tuple[str, int], move: str = MOVE) -> list[bool]:
        return self.links.link(LinkRequest(move, url, SOURCE, list(objects), 7))

    def pinned(self, move: str = MOVE) -> frozenset[str]:
        return pins.decode(self.store.read(f"pins/move-{move}.json")).objects or frozenset()


@pytest.fixture
def objects(data: TieredServer) -> list[str]:
    """Three objects below ``data.target``."""
    (data.target / owner.NAME).write_bytes(owner.encode(SOURCE))
    copier = data.copier()
    for key in "abc":
        data.add(key, 50)
        assert copier.run()
    return sorted(os.listdir(data.target / "objects"))


def renamed(name: str) -> str:
    return f"{7:016x}{name[16:]}"


def test_a_link_is_the_same_file_with_another_epoch(data: TieredServer, objects: list[str], tmp_path: Path) -> None:
    (own := tmp_path / "own").mkdir()
    target = Target(str(own))
    assert target.link(str(data.target), *((name, 1) for name in objects)) == [True] * 3
    for name in objects:
        assert (own / "objects" / renamed(name)).samefile(data.target / "objects" / name)
    assert target.pinned() == set(map(renamed, objects))
    assert target.link(f"file://{data.target}", (objects[0], 1), move=OTHER) == [True], "it exists already"
    assert target.pinned(OTHER) == {renamed(objects[0])}
    assert target.warnings == []


def test_objects_that_are_not_linked(data: TieredServer, objects: list[str], tmp_path: Path) -> None:
    (own := tmp_path / "own").mkdir()
    target, url = Target(str(own)), str(data.target)
    (data.target / "objects" / objects[0]).unlink()
    damaged = data.target / "objects" / objects[1]
    damaged.write_bytes(damaged.read_bytes()[:-9] + b"x" * 9)
    assert target.link(url, (objects[0], 1), (objects[1], 1), (objects[2], 1), ("../owner.json", 1)) == [
        False, False, True, False,
    ]  # fmt: skip
    assert "3 objects of" in target.warnings[0]
    assert os.listdir(own / "objects") == [renamed(objects[2])]
    for other in ("s3://bucket/x", "http://host/x", "relative"):
        with pytest.raises(HistoryStoreError, match="in another kind of store"):
            target.link(other, (objects[2], 1))
    with pytest.raises(HistoryStoreError, match="is not the ID of a move"):
        target.link(url, (objects[2], 1), move="../x")
    pin = own / "pins" / f"move-{OTHER}.json"
    pin.write_bytes(b"damaged")
    with pytest.raises(CorruptError):
        target.link(url, (objects[2], 1), move=OTHER)
    assert pin.read_bytes() == b"damaged", "it protects everything"
    pin.unlink()
    shutil.rmtree(own)
    with pytest.raises(HistoryStoreError, match="mount it, or create it"):
        target.link(url, (objects[2], 1))


def test_the_prefix_of_another_group(data: TieredServer, objects: list[str], tmp_path: Path) -> None:
    """The same URL can be another store here: another endpoint with a bucket of this name, or another mount."""
    (own := tmp_path / "own").mkdir()
    target, url, file = Target(str(own)), str(data.target), data.target / owner.NAME
    file.write_bytes(owner.encode("d4" * 20))
    with pytest.raises(HistoryStoreError, match=f"{url} belongs to {'d4' * 20} here, instead of to the group that has"):
        target.link(url, (objects[0], 1))
    file.unlink()
    with pytest.raises(HistoryStoreError, match=f"{url} belongs to no server here"):
        target.link(url, (objects[0], 1))
    with pytest.raises(HistoryStoreError, match="nowhere is no directory"):
        target.link(str(tmp_path / "nowhere"), (objects[0], 1))
    file.write_bytes(b"damaged")
    with pytest.raises(CorruptError):
        target.link(url, (objects[0], 1))
    assert not list(own.iterdir())
    file.write_bytes(owner.encode(SOURCE))
    assert target.link(url, (objects[0], 1)) == [True]


@pytest.mark.parametrize("wrong", ["damaged", "another"])
def test_a_link_that_fails_its_verification_is_deleted(
    data: TieredServer, objects: list[str], tmp_path: Path, wrong: str
) -> None:
    """Also if its index is damaged. Other objects with a damaged index are reported, and never deleted."""
    (own := tmp_path / "own").mkdir()
    files = FaultyFiles(LocalFiles(str(own)))
    failing, kept = f"objects/{renamed(objects[0])}", f"objects/{7:016x}-{'ab' * 16}.tide"
    another = (data.target / "objects" / objects[1]).read_bytes()

    def change(name: str, content: bytes) -> bytes:
        if name not in (failing, kept):
            return content
        return content[:-1] + b"x" if wrong == "damaged" or name == kept else another[-len(content) :]

    files.change = change
    target = Target(str(own), files)
    assert target.link(str(data.target), (objects[0], 1), (objects[1], 1)) == [False, True]
    assert [(file.name, file.why) for file in target.deletions.current.files] == [(failing, "unused")]
    assert (target.deletions.current.epoch, target.deletions.current.grace) == (7, GRACE)
    (own / kept).write_bytes(another)
    copier = Copier(data.copied, own, files, epoch=7, now=CLOCK)
    copier.delete()
    copier.now += 2 * GRACE
    copier.delete()
    assert (own / failing).exists(), "the pin protects it"
    (own / "pins" / f"move-{MOVE}.json").unlink()
    copier.now += 2 * GRACE
    copier.delete()
    assert not (own / failing).exists()
    assert (own / kept).exists()
    assert (own / "objects" / renamed(objects[1])).exists(), "the store has its entries, and no manifest lists it"
    assert target.link(str(data.target), (objects[0], 1)) == [False], "its deletion can be in progress"
    files.change = lambda _name, content: content
    assert Target(str(own), files).link(str(data.target), (objects[0], 1)) == [True]


def test_a_failed_link_that_existed_before_is_not_deleted(
    data: TieredServer, objects: list[str], tmp_path: Path
) -> None:
    """Slots have left here with it, and the store may still refer to it."""
    (own := tmp_path / "own").mkdir()
    files = FaultyFiles(LocalFiles(str(own)))
    target = Target(str(own), files)
    assert target.link(str(data.target), (objects[0], 1)) == [True]
    name = f"objects/{renamed(objects[0])}"
    files.change = lambda at, content: content[:-1] + b"x" if at == name else content
    assert target.link(str(data.target), (objects[0], 1), move=OTHER) == [False]
    assert not target.deletions.current.files
    assert (own / name).exists()


def test_a_name_in_the_list_of_deletions(data: TieredServer, objects: list[str], tmp_path: Path) -> None:
    """A request to delete it may still be in progress."""
    (own := tmp_path / "own").mkdir()
    target = Target(str(own))
    target.deletions.add([WaitingFile(f"objects/{renamed(objects[0])}", 1, 1, CLOCK)])
    assert target.link(str(data.target), (objects[0], 1), (objects[1], 1)) == [False, True]
    assert os.listdir(own / "objects") == [renamed(objects[1])]


def test_a_symbolic_link_is_not_linked(data: TieredServer, objects: list[str], tmp_path: Path) -> None:
    (own := tmp_path / "own").mkdir()
    (data.target / "objects" / objects[0]).rename(tmp_path / "elsewhere")
    (data.target / "objects" / objects[0]).symlink_to(tmp_path / "elsewhere")
    assert Target(str(own)).link(str(data.target), (objects[0], 1)) == [False]
    assert not list(own.glob("objects/*"))


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no second file system")
def test_another_file_system(data: TieredServer, objects: list[str], tmp_path: Path) -> None:
    if os.stat("/dev/shm").st_dev == tmp_path.stat().st_dev:
        pytest.skip("one file system")
    own = Path("/dev/shm") / f"tidelog-{os.getpid()}"
    own.mkdir()
    try:
        target = Target(str(own))
        assert target.link(str(data.target), (objects[0], 1)) == [False]
        assert "cross-device" in target.warnings[0]
    finally:
        shutil.rmtree(own)


def test_a_bucket_copies_objects_that_move_for_the_larger_part(
    data: TieredServer, objects: list[str], bucket: str, tmp_path: Path
) -> None:
    theirs, own = f"{bucket}/{tmp_path.name}/1", f"{bucket}/{tmp_path.name}/2"
    source, target = HistoryStore(theirs, 30, lambda: None), Target(own)
    sizes = {}
    for name in objects:
        content = (data.target / "objects" / name).read_bytes()
        sizes[name] = len(content)
        source.write(f"objects/{name}", content)
    source.write(owner.NAME, owner.encode(SOURCE))
    wanted = [(name, (sizes[name] + number) // 2) for number, name in zip((-1, 1, 1), objects, strict=True)]
    assert target.link(theirs, *wanted) == [False, True, True]
    assert f"has {sizes[objects[0]]} bytes, of which only {wanted[0][1]} move" in target.warnings[0]
    assert sorted(target.store.names("objects")) == sorted(map(renamed, objects[1:]))
    for name in objects[1:]:
        assert target.store.read(f"objects/{renamed(name)}") == source.read(f"objects/{name}")


def test_a_link_always_has_a_pin(data: TieredServer, objects: list[str], tmp_path: Path) -> None:
    """Each call to the object store fails, before or after it takes effect."""
    for after in (False, True):
        for fail_at in range(20):
            own = tmp_path / f"{after}-{fail_at}"
            own.mkdir()
            files = FaultyFiles(LocalFiles(str(own)), fail_at, after)
            target = Target(str(own), files)
            try:
                results = target.link(str(data.target), (objects[0], 1), (objects[1], 1))
            except HistoryStoreError:
                results = [False, False]
            linked = set(os.listdir(own / "objects")) if (own / "objects").exists() else set()
            assert linked >= {renamed(name) for name, one in zip(objects, results, strict=False) if one}
            assert not linked or linked <= Target(str(own)).pinned()
            if files.calls <= fail_at:
                break
        else:
            pytest.fail("more calls than faults")


def test_a_pin_is_removed_by_a_later_pass_and_a_later_checkpoint(
    data: TieredServer, objects: list[str], tmp_path: Path
) -> None:
    (own := tmp_path / "own").mkdir()
    target = Target(str(own))

    def end() -> int:
        info = data.client("INFO", "replication").decode()
        return int(info.partition("master_repl_offset:")[2].split()[0])

    def release(*moves: str, helper: Target = target, offset: int = -1, floor: int = 0) -> bool:
        return helper.links.release(data.copied, frozenset(moves), end(), offset, floor)

    assert not release(), "no pins"
    target.link(str(data.target), (objects[0], 1))
    target.link(str(data.target), (objects[0], 1), move=OTHER)
    for _ in range(3):
        assert not release(MOVE, OTHER), "both moves continue"
    data.client("SET", "later", "1")
    assert not release(OTHER), "the end must have been known to an earlier pass"
    assert not release(OTHER), "the store does not have it"
    data.save()
    assert not release(OTHER, offset=0), "the store has records that are not confirmed"
    assert not release(OTHER, floor=1 << 40), "the store of a new leader"
    assert release(OTHER)
    assert os.listdir(own / "pins") == [f"move-{OTHER}.json"]
    assert not release(OTHER)
    # the helper is killed: the next one finds the pin
    later = Target(str(own))
    assert not release(helper=later)
    assert release(helper=later)
    assert os.listdir(own / "pins") == []


def test_a_pin_that_cannot_be_removed(data: TieredServer, objects: list[str], tmp_path: Path) -> None:
    """It does not delay the removal of others."""
    (own := tmp_path / "own").mkdir()
    target = Target(str(own))
    for move in (MOVE, OTHER):
        target.link(str(data.target), (objects[0], 1), move=move)
    assert not target.links.release(data.copied, frozenset(), 0, -1, 0)
    (own / "pins" / f"move-{MOVE}.json").unlink()
    (own / "pins" / f"move-{MOVE}.json").mkdir()
    assert target.links.release(data.copied, frozenset(), 0, -1, 0)
    assert os.listdir(own / "pins") == [f"move-{MOVE}.json"]
    assert "is not needed any more" in target.warnings[-1]
    (own / "pins" / f"move-{MOVE}.json").rmdir()
    assert target.links.release(data.copied, frozenset(), 0, -1, 0)


def test_a_move_that_begins_again_keeps_its_pin(data: TieredServer, objects: list[str], tmp_path: Path) -> None:
    """A pin that a later leader has written meanwhile is not removed by the request that finds it."""
    (own := tmp_path / "own").mkdir()
    late = Target(str(own))
    Target(str(own)).link(str(data.target), (objects[0], 1))
    assert not late.links.release(data.copied, frozenset(), 0, -1, 0)
    assert not late.links.release(data.copied, frozenset((MOVE,)), 0, -1, 0)
    assert not late.links.release(data.copied, frozenset(), 0, -1, 0)
    assert os.listdir(own / "pins") == [f"move-{MOVE}.json"]
