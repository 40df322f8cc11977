"""Calls to an object store that hangs: each has a time limit, and the error names the file and the option."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tidelog.history.kit import ZERO, copy_all, planner, read, tiered
from tests.tidelog.history.stopped import hanging, silent_s3
from tests.wire.rawclient import Raw
from tidelog.client.entries import StreamId
from tidelog.history.deadline import VARIABLE, default_seconds
from tidelog.history.errors import HistoryError
from tidelog.history.files import HistoryFiles
from tidelog.history.sections import ALL
from tidelog.operating.timelimit import within

HUNG = r"the object store has not answered within 0\.3 s \(the limit is the option historyTimeout of Spark, and TIDE"


def test_the_limit_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert (default_seconds(), HistoryFiles("/t").seconds, HistoryFiles("/t", 2).seconds) == (60, 60, 2)
    monkeypatch.setenv(VARIABLE, "1.5")
    assert (HistoryFiles("/t").seconds, HistoryFiles("/t", 2).seconds) == (1.5, 2)
    for text in ("0", "-1", "nan", "inf", "x"):
        monkeypatch.setenv(VARIABLE, text)
        with pytest.raises(HistoryError, match=f"{VARIABLE} must be a positive number of seconds: '{text}'"):
            HistoryFiles("/t")


def test_results_and_errors() -> None:
    assert within(60, lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        within(60, lambda: 1 // 0)
    release = threading.Event()
    with pytest.raises(TimeoutError):
        within(0.01, release.wait)
    release.set()


def limited(url: str) -> HistoryFiles:
    """The files below a URL, with a short limit for calls, but not for the driver's start."""
    files = HistoryFiles(url, 60)
    vars(files)["seconds"] = 0.3
    return files


def test_a_server_that_accepts_connections_and_never_answers() -> None:
    with silent_s3() as url:
        files = limited(url)
        with pytest.raises(HistoryError, match=f"^{url}/objects/x can't be read: {HUNG}"):
            files.read("objects/x", 0, 10)
        files._silent_until += 1000
        with pytest.raises(HistoryError, match=f"^{url}/streams/a can't be read: {HUNG}"):
            files.names("streams/a")  # without another call
        with pytest.raises(HistoryError, match=f"^{url}/streams/a can't be read: {HUNG}"):
            limited(url).names("streams/a")


def test_a_plan_and_a_read_of_files_that_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tiered(tmp_path) as server, Raw(server.port) as client:
        for key in ("a", "b"):
            client.pipeline(*[("XADD", key, f"{n}-1", "n", str(n)) for n in range(1, 46)])
        copy_all(server)
        (path,) = (tmp_path / "objects").iterdir()
        manifest = max((tmp_path / "streams" / "b").iterdir())
        with planner(server) as plans:
            piece = plans.histories({"a": ALL})["a"].piece(ZERO, StreamId(999))
        assert piece is not None
        monkeypatch.setenv(VARIABLE, "0.3")
        with hanging(path), pytest.raises(HistoryError, match=f"^{path} can't be read: {HUNG}"):
            read(replace(piece, seconds=0.3))
        with hanging(path), planner(server) as plans:
            assert plans.histories({"a": ALL, "b": ALL}) == {}
            assert sorted(plans.problems) == ["a", "b"]
        with hanging(manifest), planner(server) as plans:
            assert plans.histories({"b": ALL}) == {}
            assert str(plans.problems["b"]).startswith(f"{tmp_path}/streams/b")
            assert "can't be read: the object store has not answered" in str(plans.problems["b"])
        assert len(read(piece)) == 40


def test_a_server_that_stops_to_answer_on_a_connection() -> None:
    with silent_s3(b"HTTP/1.1 206 Partial Content\r\nContent-Length: 2\r\nETag: \"e\"\r\n\r\n23") as url:
        assert HistoryFiles(url, 60).read("objects/x", 2, 4) == b"23"
        with pytest.raises(HistoryError, match=f"^{url}/objects/x can't be read: {HUNG}"):
            limited(url).read("objects/x", 2, 4)
