"""Object stores: a directory, and S3 by moto."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from persistence.tiering.objectstore import (
    Files,
    HistoryStore,
    HistoryStoreError,
    LocalFiles,
    MissingFileError,
    TimedOutError,
    problem_of,
)
from persistence.tiering.ownership import ForeignPrefixError, check_store, claim
from storage.history import owner
from tests.persistence.tiering.kit import SERVER, FaultyFiles
from tests.tidelog.jobs.s3kit import s3_bucket

Make = Callable[[], HistoryStore]


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket() as url:
        yield url


@pytest.fixture(params=["directory", "file URL", "s3"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    urls = {"directory": str(tmp_path), "file URL": f"file://{tmp_path}"}
    url = urls.get(request.param) or f"{request.getfixturevalue('bucket')}/{tmp_path.name}"
    return lambda: HistoryStore(url, 60, lambda: None)


def test_files(make: Make) -> None:
    store = make()
    assert store.names("streams/a") == []
    assert store.create("streams/a/1.json", b"one")
    assert not store.create("streams/a/1.json", b"two")
    store.write("streams/a/2.json", b"123456789")
    assert sorted(store.names("streams/a")) == ["1.json", "2.json"]
    assert store.read("streams/a/1.json") == b"one"
    assert store.read("streams/a/2.json", 2, 5) == b"345"
    assert store.read("streams/a/2.json", 7) == b"89"
    store.remove("streams/a/1.json")
    store.remove("streams/a/1.json")
    with pytest.raises(MissingFileError, match=r"can't read streams/a/1.json: it does not exist"):
        store.read("streams/a/1.json")
    assert store.names("streams/a") == ["2.json"]
    assert (store.calls, store.failed) == (12, 0)


def test_a_bucket_that_does_not_exist(bucket: str) -> None:
    url = bucket.replace("bucket", "nowhere")
    store = HistoryStore(url, 60, lambda: None)
    for put in (store.create, store.write):
        with pytest.raises(HistoryStoreError, match=rf"a.json: the bucket of {url} does not exist"):
            put("a.json", b"one")


def test_the_check_and_the_owner(make: Make) -> None:
    check_store(make())
    claim(make(), SERVER)
    claim(make(), SERVER)
    with pytest.raises(
        HistoryStoreError, match=f"belongs to another server or server group .ID {SERVER}; this one has {'7' * 40}"
    ):
        claim(make(), "7" * 40)
    store = make()
    store.write("streams/a/1.json", b"x")
    store.remove("owner.json")
    with pytest.raises(HistoryStoreError, match=r"contains a history, but its owner.json is missing"):
        claim(make(), SERVER)


def test_servers_that_claim_a_prefix_together(make: Make) -> None:
    """One of them owns it, and all others are refused."""
    servers = [f"{number:040x}" for number in range(8)]
    begin = threading.Barrier(len(servers))

    def claimed(server: str) -> str:
        store = make()
        store.open()
        begin.wait(60)
        try:
            claim(store, server)
        except ForeignPrefixError:
            return ""
        return server

    with ThreadPoolExecutor(len(servers)) as pool:
        owners = [server for server in pool.map(claimed, servers) if server]
    assert len(owners) == 1
    assert owner.decode(make().read(owner.NAME)) == owners[0]


def store_with(files: Files, seconds: float = 30) -> HistoryStore:
    store = HistoryStore("/none", seconds, lambda: None)
    store._files = files
    return store


def test_a_store_that_replaces_files_is_refused(tmp_path: Path) -> None:
    class Replacing(LocalFiles):
        create = LocalFiles.write

    with pytest.raises(HistoryStoreError, match="Use a store with conditional writes"):
        check_store(store_with(Replacing(str(tmp_path))))
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_does_not_return_what_was_written_is_refused(tmp_path: Path) -> None:
    files = FaultyFiles(LocalFiles(str(tmp_path)))
    files.change = lambda _name, data: data[:-1]
    with pytest.raises(HistoryStoreError, match="does not return what was written"):
        check_store(store_with(files))


def test_a_call_that_hangs(tmp_path: Path) -> None:
    hung = threading.Event()

    class Hanging(LocalFiles):
        def read(self, name: str, start: int, end: int | None) -> bytes:
            hung.wait(60)
            return b""

    store = store_with(Hanging(str(tmp_path)), seconds=0.05)
    with pytest.raises(TimedOutError, match=r"can't read a: no answer within 0.05 s"):
        store.read("a")
    assert (store.calls, store.failed) == (1, 1)
    hung.set()


def test_a_directory_that_is_not_mounted(tmp_path: Path) -> None:
    store = HistoryStore(str(tmp_path / "none"), 30, lambda: None)
    with pytest.raises(HistoryStoreError, match="is no directory: mount it, or create it"):
        store.create("a", b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("/mnt/tide", ""), ("file:///mnt/tide", ""), ("s3://bucket/tide", ""), ("gs://bucket", ""), ("abfs://c/p", ""),
        ("tide", "absolute path"), ("file://mnt", "absolute path"), ("s3://", "bucket is missing"),
        ("ftp://host/a", "is not supported"),
    ],
)  # fmt: skip
def test_urls(url: str, problem: str) -> None:
    found = problem_of(url)
    assert problem in found
    assert bool(problem) == bool(found)
