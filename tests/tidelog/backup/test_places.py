"""Targets: a folder, and what fsspec has."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.tidelog.jobs.s3kit import s3_bucket
from tidelog.backup.targets import BackupError, BackupTarget, LocalTarget, target_at


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_bucket() as url:
        yield url


@pytest.fixture(params=["folder", "file", "memory", "local", pytest.param("s3", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> BackupTarget:
    if request.param == "s3":
        return target_at(f"{request.getfixturevalue('s3')}/{uuid4()}/t")
    if request.param in ("memory", "local"):
        pytest.importorskip("fsspec", reason="fsspec is not installed: pip install -e '.[test]'")
    names = {"folder": str(tmp_path / "t"), "file": f"file://{tmp_path}/t", "memory": f"memory://{tmp_path}/t"}
    return target_at(names.get(request.param, f"local://{tmp_path}/t"))


def test_files(place: BackupTarget) -> None:
    assert place.names() == place.names("chunks") == {}
    place.write("a.json", b"one")
    place.write("chunks/ab/abc", b"second")
    place.write("a.json", b"first")
    place.settle()
    assert place.names() == {"a.json": 5, "chunks/ab/abc": 6}
    assert place.names("chunks") == {"chunks/ab/abc": 6}
    assert place.names(below=False) == {"a.json": 5}
    assert (place.read("a.json", 100), place.read("chunks/ab/abc", 100)) == (b"first", b"second")
    place.remove("a.json")
    place.remove("a.json")
    assert place.names() == {"chunks/ab/abc": 6}


def test_a_file_that_is_missing(place: BackupTarget) -> None:
    with pytest.raises(BackupError, match=r"can't read .*a\.json: it is not there"):
        place.read("a.json", 100)


@pytest.mark.parametrize("kind", ["fifo", "zero", "folder", "large"])
@pytest.mark.parametrize("scheme", ["", "file://", "local://"])
def test_only_regular_files_of_the_expected_size_are_read(tmp_path: Path, scheme: str, kind: str) -> None:
    path = tmp_path / "a.json"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(bytes(11))
    place = target_at(f"{scheme}{tmp_path}")
    with pytest.raises(BackupError, match=r"can't read .*a\.json: "):
        place.read("a.json", 10)
    (tmp_path / "b.json").write_bytes(bytes(10))
    assert place.read("b.json", 10) == bytes(10)


def test_modes_of_a_folder(tmp_path: Path) -> None:
    target_at(str(tmp_path / "t/u")).write("chunks/ab/abc", b"x")
    made = [path for path in (tmp_path / "t").rglob("*") if path.is_file()]
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o600]
    folders = [tmp_path / "t", *(path for path in (tmp_path / "t").rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = LocalTarget(tmp_path)
    place.write("a", b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BackupError, match=r"can't write .*/a: No space left on device"):
        place.write("a", b"new")
    assert (place.names(), place.read("a", 100)) == ({"a": 3}, b"old")


def test_a_target_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("mine")
    place = target_at(str(tmp_path / "t"))
    with pytest.raises(BackupError, match="can't write"):
        place.write("a", b"x")
    with pytest.raises(BackupError, match="can't list"):
        place.names()


def test_urls_that_nothing_here_can_open(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed: pip install -e '.[test]'")
    with pytest.raises(BackupError, match="can't use nosuch://x: ValueError: Protocol not known"):
        target_at("nosuch://user:secret@x")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(BackupError, match=r"memory://x needs fsspec: pip install 'tidelog\[backup\]'"):
        target_at("memory://x")
