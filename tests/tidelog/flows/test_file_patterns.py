"""``file`` with a pattern: positions by inode that survive restarts, renames, rotation, truncation, and deletion."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.tidelog.flows.byteskit import Reader, running
from tests.waiting import eventually, until
from tidelog.flows import FlowFileError, op
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.connectors.files import watching
from tidelog.flows.connectors.files.searching import FileSearch
from tidelog.flows.connectors.files.watchedfile import WatchedFile
from tidelog.flows.files import read_text
from tidelog.flows.runtime.runningflow import RunningFlow

EXAMPLE = Path(__file__).parents[3] / "examples" / "flows" / "logs.yaml"


class Logs:
    """A directory with files, and the readers of a pattern in it."""

    def __init__(self, path: Path) -> None:
        self.path = path / "logs"
        self.path.mkdir()
        self.position = path / "position"

    def write(self, name: str, *lines: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.writelines(f"{each}\n" for each in lines)
        return path

    def reader(self, pattern: str = "**/*.log", **options: Any) -> Reader:
        given = {"codec": "string", "tail": True, "poll": 0.01, "linger": 0.05, "position": str(self.position)}
        return Reader("file", path=f"{self.path}/{pattern}", **given | options)

    def offsets(self) -> list[int]:
        """The stored offsets. The source must not run, because it locks the file."""
        with closing(sqlite3.connect(self.position)) as database:
            return sorted(each for (each,) in database.execute("SELECT offset FROM files"))


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def _read(reader: Reader, expected: list[str], meanwhile: Callable[[], object] | None = None) -> None:
    """Run a reader until it has read these lines, in any order, and drain it."""

    async def main() -> None:
        async with running(reader.flow) as one:
            if meanwhile is not None:
                meanwhile()
            await until(lambda: sorted(reader.values) == sorted(expected))
            assert (await one.drain(20)).complete

    asyncio.run(main())


def test_all_files_and_those_that_appear_later(logs: Logs) -> None:
    logs.write("a.log", "1", "2")
    logs.write("x/y/b.log", "3")
    logs.write("x/.hidden/c.log", "no")
    logs.write("d.txt", "no")
    _read(logs.reader(), ["1", "2", "3", "4", "5"], lambda: (logs.write("new/d.log", "4"), logs.write("a.log", "5")))
    assert logs.offsets() == [2, 2, 6]
    _read(logs.reader(), ["6", "7"], lambda: (logs.write("a.log", "6"), logs.write("e.log", "7")))


def test_events_of_a_file_have_its_path_and_are_in_order(logs: Logs) -> None:
    for name in "abc":
        logs.write(f"{name}.log", *(f"{name}{number:05}" for number in range(12_000)))
    reader = logs.reader(tail=False)

    async def main() -> None:
        async with running(reader.flow, started=False) as one, asyncio.timeout(60):
            await one.finished()

    asyncio.run(main())
    assert len(reader.values) == 36_000
    for name in "abc":
        found = [each for each in reader.events if each.meta["path"] == str(logs.path / f"{name}.log")]
        assert [each.value for each in found] == [f"{name}{number:05}" for number in range(12_000)]
        assert found[-1].meta["offset"] == 84_000
    again = logs.reader(tail=False)
    logs.write("a.log", "more")

    async def once_more() -> None:
        async with running(again.flow, started=False) as one, asyncio.timeout(60):
            await one.finished()

    asyncio.run(once_more())
    assert again.values == ["more"]


def test_latest_begins_at_the_end_of_the_files_that_exist(logs: Logs) -> None:
    logs.write("a.log", "old")
    reader = logs.reader(start="latest")

    async def main() -> None:
        async with running(reader.flow) as one:
            await until(lambda: _watch(one)._searched)
            logs.write("a.log", "1")
            logs.write("b.log", "2")
            await until(lambda: sorted(reader.values) == ["1", "2"])

    asyncio.run(main())
    _read(logs.reader(start="latest"), ["3", "4"], lambda: (logs.write("a.log", "3"), logs.write("c.log", "4")))


@pytest.mark.parametrize("name", ["b.log", "a.log.1", "a.old"], ids=["matches", "rotated", "other"])
def test_a_file_that_was_renamed_while_nobody_read_is_read_to_its_end(logs: Logs, name: str) -> None:
    path = logs.write("a.log", "1")
    _read(logs.reader(), ["1"])
    logs.write("a.log", "2")
    path.rename(logs.path / name)
    logs.write("a.log", "3")
    _read(logs.reader(), ["2", "3"])
    logs.write("a.log", "4")
    _read(logs.reader(), ["4"])


def test_a_rename_and_a_rotation_while_reading(logs: Logs) -> None:
    path = logs.write("a.log", "1")
    reader = logs.reader(linger=0.5)

    async def main() -> None:
        async with running(reader.flow):
            await until(lambda: reader.values == ["1"])
            with path.open("a") as writer:
                path.rename(logs.path / "b.log")
                writer.write("2\n")
                writer.flush()
                await until(lambda: reader.values == ["1", "2"])
                (logs.path / "b.log").rename(logs.path / "b.log.1")  # matches no more, and its writer still writes
                logs.write("b.log", "4")
                writer.write("3\n")
                writer.flush()
                await until(lambda: sorted(reader.values) == ["1", "2", "3", "4"])
            for number in range(5, 15):  # inodes are used again
                (logs.path / "b.log.1").unlink()
                (logs.path / "b.log").rename(logs.path / "b.log.1")
                logs.write("b.log", str(number))
                await until(lambda: str(number) in reader.values)  # noqa: B023
            assert sorted(map(int, reader.values)) == list(range(1, 15))

    asyncio.run(main())


def test_truncation_while_reading_and_while_nobody_reads(logs: Logs) -> None:
    path = logs.write("a.log", *map(str, range(100)))
    reader = logs.reader()

    async def main() -> None:
        async with running(reader.flow) as one:
            await until(lambda: len(reader.values) == 100)
            _truncated(path, "a\n")
            await until(lambda: reader.values[100:] == ["a"])
            assert (await one.drain(20)).complete

    asyncio.run(main())
    _truncated(path, "b\n" * 300)
    _read(logs.reader(), ["b"] * 300)


def _truncated(path: Path, text: str) -> None:
    with path.open("r+") as file:  # as copytruncate does it
        file.truncate(0)
        file.write(text)


def test_a_file_that_was_deleted_and_created_again_with_the_same_inode(logs: Logs) -> None:
    """The file system may give another inode, so the stored one is changed to it."""
    logs.write("a.log", "one", "two")
    _read(logs.reader(), ["one", "two"])
    (logs.path / "a.log").unlink()
    logs.write("a.log", "three", "four", "five")
    with closing(sqlite3.connect(logs.position)) as database:
        database.execute("UPDATE files SET inode = ?", (str((logs.path / "a.log").stat().st_ino),))
        database.commit()
    _read(logs.reader(), ["three", "four", "five"])


def test_a_deleted_file_is_read_to_its_end_and_its_position_is_removed(logs: Logs) -> None:
    path = logs.write("a.log", "1")
    reader = logs.reader()

    async def main() -> None:
        async with running(reader.flow) as one:
            await until(lambda: reader.values == ["1"])
            with path.open("a") as writer:
                path.unlink()
                writer.write("2\nwithout a line break")
            await until(lambda: reader.values == ["1", "2", "without a line break"])
            await until(lambda: not _watch(one)._files)
            assert not _watch(one)._open

    asyncio.run(main())
    assert logs.offsets() == []


def _watch(one: Any) -> watching.FileWatch:
    connector: Any = one.graph.connections["in"].connector
    found: watching.FileWatch = connector._watch
    return found


def test_few_files_are_open(logs: Logs) -> None:
    for number in range(40):
        logs.write(f"{number}.log", *(f"{number}-{line}" for line in range(10)))
    expected = [f"{number}-{line}" for number in range(40) for line in range(10)]
    reader = logs.reader(max_open=3)
    most = 0

    async def main() -> None:
        nonlocal most
        async with running(reader.flow) as one, asyncio.timeout(60):
            for turn in range(3):
                while len(reader.values) < len(expected) + turn * 40:
                    most = max(most, len(_watch(one)._open))
                    await asyncio.sleep(0.001)
                for number in range(40):
                    logs.write(f"{number}.log", f"{number}-more-{turn}")
            assert most <= 3
            assert len(set(reader.values)) == len(reader.values)
            assert all(each.file is None or each in _watch(one)._open for each in _watch(one)._files.values())

    asyncio.run(main())


def test_a_batch_of_more_events_than_open_files_have(logs: Logs) -> None:
    for number in range(30):
        logs.write(f"{number}.log", str(number))
    reader = logs.reader(tail=False, max_open=2)
    reader.flow.pipeline("batches", op("batch", count=30))
    reader.flow.connect("in -> batches -> out")

    async def main() -> None:
        async with running(reader.flow, started=False) as one, asyncio.timeout(60):
            await one.finished()

    asyncio.run(main())
    assert {each for one in reader.values if isinstance(one, list) for each in one} == set(map(str, range(30)))


def test_a_message_that_fails_does_not_move_the_position_of_its_file(logs: Logs) -> None:
    logs.write("a.log", "1", "2", "3")
    logs.write("b.log", "4")
    reader = logs.reader()
    reader.fail["2"] = 1_000_000

    async def main() -> None:
        async with running(reader.flow) as one:
            await until(lambda: sorted(reader.values) == ["1", "3", "4"])
            await until(lambda: one.graph.sources["in"].unsettled == 1)
            await until(lambda: not _watch(one)._dirty)

    asyncio.run(main())
    assert logs.offsets() == [2, 2]
    _read(logs.reader(), ["2", "3"])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a file that another user can't read")
def test_a_file_that_can_not_be_read_does_not_affect_the_others(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "RETRY", 0.05)
    path = logs.write("a.log", "1")
    logs.write("b.log", "2")
    real = WatchedFile.open
    denied = True

    def opened(self: WatchedFile, options: Any) -> bool:
        if denied and self.path == str(path):
            raise PermissionError(13, "Permission denied")
        return real(self, options)

    monkeypatch.setattr(WatchedFile, "open", opened)
    reader = logs.reader()

    async def main() -> None:
        nonlocal denied
        async with running(reader.flow) as one:
            await until(lambda: reader.values == ["2"])
            await until(lambda: one.graph.sources["in"].counts.get("errors", 0) > 1)
            denied = False
            await until(lambda: reader.values == ["2", "1"])

    asyncio.run(main())


def test_a_second_source_with_the_same_position_is_refused(logs: Logs) -> None:
    logs.write("a.log", "1")
    first, second = logs.reader(), logs.reader(reconnect="none")

    async def main() -> None:
        async with running(first.flow), running(second.flow, started=False) as other:
            await until(lambda: other.graph.connections["in"].failed)
            assert "another source uses it" in other.graph.connections["in"].error

    asyncio.run(main())


def test_wrong_options(logs: Logs) -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("*.log", {"position": None}, "position is missing"),
        ("*", {"position": str(logs.path / "position")}, "it matches path"),
        ("a**.log", {}, "must be a whole directory"),
        ("*.log", {"tail": False, "preprocessors": []}, "splits messages"),
        ("*.log", {"preprocessors": [{"multiline": {"start": "a", "continuation": "b"}}]}, "exclude each other"),
        ("*.log", {"preprocessors": [{"multiline": {"start": "("}}]}, "is not valid"),
    ]
    for pattern, options, text in cases:
        with pytest.raises(FlowFileError, match=text):
            logs.reader(pattern, **options).flow.spec()


def test_a_search_follows_links_to_files_and_not_to_directories(logs: Logs) -> None:
    path = logs.write("pods/a", "1")
    logs.write("other/b.log", "2")
    (logs.path / "a.log").symlink_to(path)
    (logs.path / "again.log").hardlink_to(path)
    (logs.path / "loop").symlink_to(logs.path)
    (logs.path / "nothing.log").symlink_to("missing")
    os.mkfifo(logs.path / "pipe.log")
    found = FileSearch(f"{logs.path}/**/*.log").find(())
    assert sorted(each.path for each in found.files.values()) == [f"{logs.path}/a.log", f"{logs.path}/other/b.log"]


@pytest.mark.parametrize("kills", [2])
def test_a_process_that_is_killed_loses_nothing(logs: Logs, kills: int) -> None:
    """The writer rotates its file, and appends to others, while the flow is killed several times."""
    output = logs.path.parent / "out.txt"
    flow = f"""
flows:
  logs:
    connectors:
      in: {{type: file, path: "{logs.path}/**/*.log*", tail: true, position: "{logs.position}", codec: string}}
      out: {{type: file, path: "{output}", codec: string}}
    connect: [in -> out]
"""
    (logs.path.parent / "flow.yaml").write_text(flow)
    number = 0
    for kill in range(kills):
        process = subprocess.Popen(
            [sys.executable, "-m", "tidelog.cli", "flow", "run", logs.path.parent / "flow.yaml", "--listen", "none"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            before = _count(output)
            for _ in range(20):
                logs.write("app.log", *map(str, range(number, number + 50)))
                logs.write(f"{number % 3}/b.log", *map(str, range(number + 50, number + 100)))
                number += 100
                if number % 700 == 0:
                    (logs.path / "app.log").rename(logs.path / f"app.log.{number}")
            eventually(lambda: _count(output) > before)  # noqa: B023
            if kill == kills - 1:
                eventually(lambda: len(set(output.read_text().split())) == number)  # noqa: B023
        finally:
            process.kill()
            process.wait()


def _count(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


TRACE = ["ERROR first", "  at a", "  at b", "INFO second", "INFO third", "  more"]


@pytest.mark.parametrize("option", [{"start": "^[A-Z]"}, {"continuation": "^  "}, {}])
def test_multiline(logs: Logs, option: dict[str, Any]) -> None:
    logs.write("a.log", *TRACE)
    messages = ["ERROR first\n  at a\n  at b", "INFO second", "INFO third\n  more"]
    before = [{"multiline": {**option, "timeout": "10ms"}}]
    _read(logs.reader(preprocessors=before), messages)
    logs.write("a.log", "ERROR x", "  y")
    _read(logs.reader(preprocessors=before), ["ERROR x\n  y"])
    one = Reader("file", path=str(logs.path / "a.log"), tail=True, poll=0.01, codec="string", preprocessors=before)
    _read(one, [*messages, "ERROR x\n  y"])


def test_a_message_without_end_is_read_again_after_a_restart(logs: Logs) -> None:
    logs.write("a.log", *TRACE)
    before = [{"multiline": {"start": "^[A-Z]", "timeout": None}}]
    reader = logs.reader(preprocessors=before)

    async def main() -> None:
        async with running(reader.flow) as one:
            await until(lambda: len(reader.values) == 2)
            await until(lambda: not _watch(one)._dirty and not one.graph.sources["in"].unsettled)

    asyncio.run(main())
    logs.write("a.log", "  and more", "INFO fourth")
    _read(logs.reader(preprocessors=before), ["INFO third\n  more\n  and more"])


def test_the_example(logs: Logs) -> None:
    logs.write("shop/app.log", "2026-11-27 10:00:00 ERROR failed", "Traceback:", "  line 1")
    logs.write("shop/app.log", "2026-11-27 10:00:01 INFO fine")
    out = logs.path.parent / "out"
    out.mkdir()
    given = {"LOGS": str(logs.path), "POSITION": str(logs.position), "OUT": str(out)}
    spec = read_text(EXAMPLE.read_text(), variables=given).flows["errors"]

    async def main() -> None:
        one = RunningFlow(spec, FlowContext("errors", dead_letters=None))
        await one.start()
        try:
            await until(lambda: any(each.read_text() for each in out.rglob("*") if each.is_file()))
        finally:
            await one.stop()

    asyncio.run(main())
    (written,) = [each for each in out.rglob("*") if each.is_file()]
    assert "Traceback:" in written.read_text()
    assert "fine" not in written.read_text()
