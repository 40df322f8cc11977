"""The object store: memory, folders, an S3-compatible server; what refuses, hangs or is not installed."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[jobs]')")
pytest.importorskip("fsspec", reason="no fsspec here (pip install 'tidelog[jobs]')")

from tests.tidelog.jobs.s3kit import s3_bucket
from tests.tidelog.jobs.snapshotkit import Job, hanging, restored
from tidelog.jobs.errors import JobError
from tidelog.jobs.snapshots import SnapshotError, check, make, manifests, restore, start
from tidelog.jobs.snapshots.objects import BLOCK, MissingError, ObjectStore, shown
from tidelog.jobs.snapshots.process import LOG
from tidelog.testing import Server, free_port


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_bucket() as url:
        yield url


@pytest.fixture(params=["memory", "path", "file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return f"{request.getfixturevalue('s3')}/{uuid4()}/states"
    return {"memory": f"memory://{uuid4()}/x", "path": f"{tmp_path}/o", "file": f"file://{tmp_path}/o"}[request.param]


@pytest.fixture
def job(tidelog_server: Server, tmp_path: Path) -> Iterator[Job]:
    with tidelog_server.client() as client:
        yield Job(client, tidelog_server.url, tmp_path)


def test_objects(url: str) -> None:
    store = ObjectStore(url, 20.0)
    assert store.names("a/1/0") == {}
    store.write("a/1/0/x.json", b"one")
    store.write("a/1/0/x.json", b"first")
    store.write("a/1/0/deeper/y.json", b"second")
    assert store.names("a/1/0") == {"x.json": 5}
    assert store.read("a/1/0/x.json") == b"first"
    with store.upload("a/1/0/big") as write:
        for _ in range(3):
            write(b"z" * (BLOCK // 2 + 1))
    assert store.names("a/1/0")["big"] == 3 * (BLOCK // 2 + 1)
    assert sum(map(len, store.pieces("a/1/0/big"))) == 3 * (BLOCK // 2 + 1)
    store.remove("a/1/0/x.json")
    store.remove("a/1/0/x.json")
    assert store.names("a/1/0").keys() == {"big"}
    with pytest.raises(MissingError, match="it does not exist"):
        store.read("a/1/0/x.json")
    with pytest.raises(MissingError, match="it does not exist"):
        list(store.pieces("a/1/0/nothing"))


def test_a_folder_that_can_not_be_listed_is_not_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recovery would begin with an empty state."""
    store = ObjectStore(str(tmp_path), 20.0)
    store.write("a/1/0/x.json", b"one")

    def refuse(_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    for listed in (store.names, store.folders):
        with pytest.raises(SnapshotError, match="Permission denied"):
            listed("a/1/0")


def test_an_upload_that_is_broken_off_leaves_nothing(url: str) -> None:
    """But in fsspec's memory, which has a file from the moment that it is opened."""
    store = ObjectStore(url, 20.0)

    def broken_off() -> None:
        with store.upload("a/1/0/big") as write:
            for _ in range(3):
                write(b"z" * BLOCK)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken_off()
    assert store.names("a/1/0") == {} or url.startswith("memory:")


def test_check(url: str) -> None:
    check(url, "count")
    assert ObjectStore(url, 20.0).names("count") == {}


@pytest.mark.parametrize("url", ["nosuch://x/y", "/proc/nothing", "s3://no-bucket/x"])
def test_check_names_job_url_and_remedy(url: str, request: pytest.FixtureRequest) -> None:
    if url.startswith("s3:"):
        request.getfixturevalue("s3")
    with pytest.raises(JobError, match="job 'count': its snapshots can't be stored at") as error:
        check(url, "count")
    assert url in str(error.value)
    assert "Check the URL" in str(error.value)


def test_a_driver_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = importlib.import_module("fsspec.registry")._registry
    for scheme, package in (("s3", "s3fs"), ("gs", "gcsfs"), ("abfs", "adlfs")):
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.delitem(loaded, scheme, raising=False)
        with pytest.raises(JobError, match=f"pip install {package}"):
            ObjectStore(f"{scheme}://bucket/x")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(JobError, match=r"memory://x need fsspec: pip install 'tidelog\[jobs\]'"):
        ObjectStore("memory://x")


def test_a_password_is_not_shown() -> None:
    assert shown("sftp://me:secret@host/x") == "sftp://host/x"
    assert shown("abfs://container@account.dfs.core.windows.net/x") == "abfs://container@account.dfs.core.windows.net/x"
    assert shown("/a/b@c:d") == "/a/b@c:d"


def test_an_endpoint_that_says_nothing(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked of it, an answer is waited for as long as it was said, and no longer."""
    with hanging() as address:
        store = ObjectStore(f"s3://bucket/{uuid4()}", 1.0)
        monkeypatch.setattr(store, "_files", stuck(address))
        began = time.monotonic()
        for ask in (
            lambda: store.names("a"), lambda: store.read("a/x"), lambda: store.write("a/x", b""),
            lambda: store.remove("a/x"), lambda: list(store.pieces("a/x")),
        ):  # fmt: skip
            with pytest.raises(SnapshotError, match=r"no response in 1 s"):
                ask()
        assert time.monotonic() - began < 10


def stuck(address: str) -> object:
    import s3fs

    return s3fs.S3FileSystem(endpoint_url=f"http://{address}", skip_instance_cache=True)


@pytest.mark.parametrize("kind", ["hangs", "refuses"])
def test_a_job_whose_object_store_fails(
    s3: str, job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    """It is told, nothing is given up, and it is made up for once the store answers again."""
    job.append(5)
    job.change(url=f"{s3}/{uuid4()}")
    job.commit(2)
    make(job.request)
    job.commit(2)
    job.change(patience=2.0)
    good = os.environ["AWS_ENDPOINT_URL"]
    with hanging() as address:
        fails = address if kind == "hangs" else f"127.0.0.1:{free_port()}"
        job.change(url=job.request.url + "/")  # fsspec keeps a connection for each URL's options
        forget_instances()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{fails}")
        with pytest.raises(SnapshotError):
            make(job.request)
        assert job.record()["error"].startswith("SnapshotError: can't list s3://bucket/")
        assert job.record()["since"] > 0
        assert (job.kept(), job.group(), job.marked()) == ([2], job.end(2), [2, 3, 4])
        with pytest.raises(SnapshotError):  # not "there is none"
            restore(job.request.url, "count", 1, 0, tmp_path / "back", 4, patience=2.0)
        with pytest.raises(JobError, match="job 'count'"):
            check(job.request.url, "count", 2.0)
        forget_instances()
        monkeypatch.setenv("AWS_ENDPOINT_URL", good)
    job.change(patience=30.0)
    make(job.request)
    assert (job.record()["error"], job.kept()) == ("", [4, 2])
    found = restored(job, 4, tmp_path / "back")
    assert found is not None
    assert found[0] == 4


def forget_instances() -> None:
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()


def test_snapshots_on_s3(s3: str, job: Job, tmp_path: Path) -> None:
    """Kept, pruned, and passed over when they are damaged, as in a folder."""
    job.append(9)
    job.change(url=f"{s3}/{uuid4()}", keep=2)
    for epoch in (2, 4, 6):
        job.commit(epoch - job.at)
        make(job.request)
    assert (job.kept(), job.group(), job.marked()) == ([6, 4], job.end(4), [4, 5, 6])
    complete, half = manifests.listed(job.objects, job.folder)
    assert (len(complete), half) == (2, [])
    data = job.objects.read(complete[0].object)
    job.objects.write(complete[0].object, data[:-10])
    found = restored(job, 6, tmp_path / "back")
    assert found is not None
    assert found[0] == 4
    job.objects.write(complete[0].object, data)
    job.objects.remove(complete[1].object)
    found = restored(job, 6, tmp_path / "back")
    assert found is not None
    assert found[0] == 6


def test_the_process_is_given_the_options_in_the_environment(s3: str, job: Job, tmp_path: Path) -> None:
    job.append(2)
    job.change(url=f"{s3}/{uuid4()}")
    job.commit(2)
    assert start(job.request)
    deadline = time.monotonic() + 60
    while job.record() is None:
        assert time.monotonic() < deadline, (job.path.parent / LOG).read_text()
        time.sleep(0.01)
    assert (job.kept(), job.record()["error"]) == ([2], "")
    found = restored(job, 2, tmp_path / "back")
    assert found is not None
    assert found[0] == 2
