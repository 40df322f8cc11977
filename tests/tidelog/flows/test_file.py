"""``file``: reading once and for ever, rotation, truncation, positions; writing, rotating."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from tests.tidelog.flows.byteskit import Reader, running, write
from tests.waiting import until
from tidelog.flows import FlowFileError
from tidelog.flows.connectors.files.appending import FileAppender
from tidelog.flows.connectors.files.tailing import TailedFile, resume, rotated
from tidelog.flows.declare import warnings

QUICK: dict[str, Any] = {"codec": "string", "poll": 0.01, "linger": 0.05}


def _lines(low: int, high: int) -> str:
    return "".join(f"{number}\n" for number in range(low, high))


def _numbers(low: int, high: int) -> list[str]:
    return [str(number) for number in range(low, high)]


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


async def _read(**options: Any) -> Reader:
    reader = Reader("file", **{"codec": "string", **options})
    async with running(reader.flow, started=False) as one, asyncio.timeout(20):
        await one.finished()
    return reader


def test_a_file_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(_lines(0, 20_000) + "last")
    reader = asyncio.run(_read(path=str(path)))
    assert reader.values == [*_numbers(0, 20_000), "last"]
    assert reader.events[1].meta == {"path": str(path), "offset": 4}
    assert os.listdir(tmp_path) == ["a.log"]


def test_what_can_not_be_read_goes_to_err_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"1\nx\n" + b"y" * 300 + b"\n\xff\n2\n")
    reader = asyncio.run(_read(path=str(path), codec="json", max_bytes=100))
    assert reader.values == [1, 2]
    assert [each.value for each in reader.bad] == [b"x", b"y" * 100, b"\xff"]
    assert "more than 100 bytes" in reader.bad[1].meta["error"]


def test_a_compressed_file_and_a_whole_file(tmp_path: Path) -> None:
    packed, whole = tmp_path / "a.gz", tmp_path / "a.yaml"
    packed.write_bytes(gzip.compress(_lines(0, 10_000).encode()))
    before = [{"gzip": {"stream": True}}, "separate"]
    kept = str(tmp_path / "position")
    reader = asyncio.run(_read(path=str(packed), preprocessors=before, position=kept))
    assert reader.values == _numbers(0, 10_000)
    assert asyncio.run(_read(path=str(packed), preprocessors=before, position=kept)).values == []
    whole.write_text("a:\n- 1\n- 2\n")
    assert asyncio.run(_read(path=str(whole), codec="yaml", preprocessors=[])).values == [{"a": [1, 2]}]


def test_a_broken_stream_in_a_file_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"2 ab3 cdexyz")
    reader = asyncio.run(_read(path=str(path), preprocessors=["textual_length_prefixed"]))
    assert reader.values == ["ab", "cde"]
    assert "from byte 9 on" in reader.bad[0].meta["error"]


def test_reading_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("name,age\nann,1\n")
    options: dict[str, Any] = {
        "path": str(path), "position": str(tmp_path / "position"), "codec": {"csv": {"header": True}},
    }  # fmt: skip
    assert asyncio.run(_read(**options)).values == [{"name": "ann", "age": "1"}]
    _append(path, "bob,2\n")
    assert asyncio.run(_read(**options)).values == [{"name": "bob", "age": "2"}]  # by the header's names
    assert asyncio.run(_read(**options)).values == []


def test_a_position_that_is_none_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("1\n")
    (tmp_path / "position").write_text("nonsense")
    reader = Reader("file", path=str(path), position=str(tmp_path / "position"), reconnect="none")

    async def main() -> None:
        async with running(reader.flow, started=False) as one:
            await until(lambda: one.graph.connections["in"].failed)
            assert "is not a position" in one.graph.connections["in"].error

    asyncio.run(main())


@pytest.mark.parametrize("create", ["at once", "late"])
def test_tail_follows_rotation(tmp_path: Path, create: str) -> None:
    async def main() -> None:
        path = tmp_path / "a.log"
        path.write_text(_lines(0, 10))
        reader = Reader("file", path=str(path), tail=True, **QUICK)
        async with running(reader.flow) as one:
            await until(lambda: len(reader.values) == 10)
            with path.open("a") as writer:
                path.rename(tmp_path / "a.log.1")
                if create == "at once":
                    path.write_text(_lines(15, 20))
                writer.write(_lines(10, 15))  # a writer that has not noticed yet
                writer.flush()
                await until(lambda: len(reader.values) >= 15)
            if create == "late":
                path.write_text(_lines(15, 20))
            await until(lambda: len(reader.values) == 20)
            assert reader.values == _numbers(0, 20)
            for number in range(20, 30):  # again and again, the oldest goes: inodes are used again
                (tmp_path / "a.log.1").rename(tmp_path / "a.log.2")
                path.rename(tmp_path / "a.log.1")
                path.write_text(f"{number}\n")
                await until(lambda: len(reader.values) == number + 1)  # noqa: B023
            assert reader.values == _numbers(0, 30)
            report = await one.drain(10)
            assert report.complete
        _append(path, "30\n")
        again = Reader("file", path=str(path), tail=True, **QUICK)
        async with running(again.flow):
            await until(lambda: again.values)
            assert again.values == ["30"]

    asyncio.run(main())


def test_files_that_were_rotated_while_nobody_read(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "a.log"
        path.write_text(_lines(0, 5))
        reader = Reader("file", path=str(path), tail=True, **QUICK)
        async with running(reader.flow) as one:
            await until(lambda: len(reader.values) == 5)
            await one.drain(10)
        (tmp_path / "a.log.7").write_text("old\n")
        os.utime(tmp_path / "a.log.7", ns=(1, 1))
        _append(path, _lines(5, 10))
        os.utime(path, ns=(0, os.stat(path).st_mtime_ns + 1_000_000))
        path.rename(tmp_path / "a.log.2")
        (tmp_path / "a.log.1").write_text(_lines(10, 15))
        os.utime(tmp_path / "a.log.1", ns=(0, os.stat(tmp_path / "a.log.2").st_mtime_ns + 1_000_000))
        path.write_text(_lines(15, 20))
        again = Reader("file", path=str(path), tail=True, **QUICK)
        async with running(again.flow):
            await until(lambda: len(again.values) >= 15)
            assert again.values == _numbers(5, 20)

    asyncio.run(main())


def test_tail_notices_truncation(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "a.log"
        path.write_text(_lines(0, 10))
        reader = Reader("file", path=str(path), tail=True, **QUICK)
        async with running(reader.flow):
            await until(lambda: len(reader.values) == 10)
            path.write_text("a\n")  # shorter
            await until(lambda: reader.values[10:] == ["a"])
            path.write_text("b\n" + _lines(0, 10))  # longer, with another beginning
            await until(lambda: len(reader.values) == 22)
            assert reader.values[11:] == ["b", *_numbers(0, 10)]

    asyncio.run(main())


def test_tail_of_a_file_that_is_not_there_yet_and_from_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "a.log"
        reader = Reader("file", path=str(path), tail=True, **QUICK)
        async with running(reader.flow):
            path.write_text("1\n2")
            await until(lambda: reader.values == ["1"])
            _append(path, "3\n")
            await until(lambda: reader.values == ["1", "23"])
        late = Reader("file", path=str(path), tail=True, start="latest", position=str(tmp_path / "other"), **QUICK)
        async with running(late.flow):
            _append(path, "4\n")
            await until(lambda: late.values)
            assert late.values == ["4"]

    asyncio.run(main())


BANNER = "".join(f"# the banner of an application, always the same: line {number}\n" for number in range(12))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BANNER + _lines(0, 10), BANNER + "new\n" * 100),  # longer, and the same first 256 bytes
        (BANNER + _lines(0, 10), BANNER + "new\n" * 2),  # shorter
        (BANNER + _lines(0, 10), BANNER + _lines(0, 9) + "x\n" + "new\n" * 100),  # differs in the last line
        ("old\n" * 20_000, "old\n" * 19_990 + "new\n" * 30),  # differs in the last bytes of a long file
    ],
)
def test_a_file_that_was_rewritten_while_nobody_read_is_read_from_its_beginning(
    tmp_path: Path, before: str, after: str
) -> None:
    async def read(count: int) -> list[str]:
        reader = Reader("file", path=str(path), tail=True, **QUICK)
        async with running(reader.flow):
            await until(lambda: len(reader.values) >= count)
            await until(lambda: json.loads(kept.read_text())["offset"] == path.stat().st_size)
        return reader.values

    path = tmp_path / "a.log"
    kept = tmp_path / "a.log.position"
    path.write_text(before)
    assert asyncio.run(read(before.count("\n"))) == before.splitlines()
    with path.open("r+") as file:  # the inode stays
        file.truncate(0)
        file.write(after)
    assert asyncio.run(read(after.count("\n"))) == after.splitlines()
    _append(path, "more\n")
    assert asyncio.run(read(1)) == ["more"]


def test_a_position_of_a_rewritten_file_is_not_stored_for_what_took_its_place(tmp_path: Path) -> None:
    """The events were settled after the file was rewritten, and the process was killed before it noticed."""
    path = tmp_path / "a.log"
    path.write_text(BANNER + _lines(0, 10))
    opened = TailedFile(path)
    opened.read(1 << 16)
    path.write_text(BANNER + "new\n" * 100)
    stored = opened.stored(opened.offset)
    opened.close()
    again = resume(path, stored)
    assert again is not None
    assert again.offset == 0
    again.close()


def test_a_position_can_be_stored_after_the_file_was_closed(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(BANNER + _lines(0, 10))
    opened = TailedFile(path)
    opened.read(1 << 16)
    open_stored = opened.stored(opened.offset)
    opened.close()
    assert opened.stored(opened.offset) == open_stored
    again = resume(path, open_stored)
    assert again is not None
    assert again.offset == len(BANNER) + 20
    again.close()


def test_positions_of_the_version_before_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(_lines(0, 10))
    opened = TailedFile(path)
    opened.read(1 << 16)
    old = {name: value for name, value in asdict(opened.stored(10)).items() if not name.startswith("before")}
    opened.close()
    (tmp_path / "position").write_text(json.dumps(old))
    assert asyncio.run(_read(path=str(path), position=str(tmp_path / "position"))).values == _numbers(5, 10)


def test_a_name_that_looks_like_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "log[1].txt").write_text("1\n")
    assert asyncio.run(_read(path=str(tmp_path / "log[1].txt"))).values == ["1"]
    asyncio.run(write(["a"], "file", path=str(tmp_path / "out[1].txt"), codec="string"))
    assert (tmp_path / "out[1].txt").read_text() == "a\n"


def test_wrong_paths_are_warnings(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("")
    for path, options, text in [
        ("none/a.log", {"tail": True}, "there is no directory"),
        ("none", {}, "there is no such file"),
        (".", {"tail": True}, "it is not a regular file"),
        ("here", {}, ""),
        ("later", {"tail": True}, ""),
    ]:
        found = warnings(Reader("file", path=str(tmp_path / path), **options).flow.spec())
        assert [text in each for each in found] == [True] * bool(text), path


def test_only_the_settled_prefix_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "a.log"
        path.write_text(_lines(0, 10))
        kept = tmp_path / "a.log.position"
        reader = Reader("file", path=str(path), tail=True, **QUICK)
        reader.fail["5"] = 1_000_000
        async with running(reader.flow) as one:
            await until(lambda: len(reader.values) == 9 and kept.exists())
            await until(lambda: json.loads(kept.read_text())["offset"] == 10)
            await until(lambda: one.graph.sources["in"].unsettled == 1)  # counted after the position is kept
        again = Reader("file", path=str(path), tail=True, **QUICK)
        async with running(again.flow):
            await until(lambda: len(again.values) == 5)
            assert again.values == _numbers(5, 10)

    asyncio.run(main())


def test_what_is_never_settled_holds_up_reading(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "a.log"
        path.write_text("".join(f"{number:07}\n" for number in range(30_000)))
        reader = Reader("file", path=str(path), tail=True, max_unsettled=1000, **QUICK)
        reader.fail["0000000"] = 20
        async with running(reader.flow):
            await until(lambda: reader.fail["0000000"] < 18)
            assert len(reader.values) < 64 * 1024 / 8 + 1000
            reader.fail.clear()
            await until(lambda: len(reader.values) == 30_000)
            assert sorted(reader.values) == [f"{number:07}" for number in range(30_000)]

    asyncio.run(main())


def test_wrong_options() -> None:
    for options, text in [
        ({"path": ""}, "it must name a file"),
        ({"path": "a", "tail": True, "preprocessors": ["remove_empty", "separate"]}, "tail requires that"),
        ({"path": "a", "keep": -1}, "keep: Expected `int` >= 0, got -1"),
        ({"path": "a", "poll": 0}, "poll: it is 0: it must be more than 0"),
        ({"path": "a", "max_bytes": 0}, "max_bytes: it is 0: it must be more than 0"),
        ({}, "the option 'path' is missing"),
        ({"path": "a", "codec": "jsn"}, "did you mean 'json'"),
        ({"path": "a", "preprocessors": ["seperate"]}, "did you mean 'separate'"),
    ]:
        with pytest.raises(FlowFileError, match=text):
            Reader("file", **options)  # type: ignore[arg-type]


# -- sink ----------------------------------------------------------------------------------------------------
def test_append_and_truncate(tmp_path: Path) -> None:
    path = tmp_path / "out"
    asyncio.run(write([{"a": 1}, 2], "file", path=str(path)))
    asyncio.run(write([3], "file", path=str(path), codec="jsonl", fsync=True))
    assert path.read_text() == '{"a":1}\n2\n3\n'
    asyncio.run(write([4], "file", path=str(path), mode="truncate"))
    assert path.read_text() == "4\n"


def test_a_header_is_written_once_in_each_file(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    options: dict[str, Any] = {"path": str(path), "codec": {"csv": {"header": True, "columns": ["a"]}}}
    asyncio.run(write([{"a": 1}], "file", **options))
    asyncio.run(write([{"a": 2}], "file", **options))
    assert path.read_text() == "a\n1\n2\n"


def test_a_line_that_a_crash_cut_off_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text('1\n{"a": ')
    asyncio.run(write([2], "file", path=str(path)))
    assert path.read_text() == '1\n{"a": \n2\n'


def test_rotation_by_size_and_time(tmp_path: Path) -> None:
    path = tmp_path / "out"
    now = [1000.0]
    one = FileAppender(path, bytes_most=10, every=100, keep=2, now=lambda: now[0])
    one.open()
    for number, seconds in enumerate((0, 1, 2, 3, 120, 121)):
        now[0] = 1000.0 + seconds
        one.prepare(4)
        one.write(b"%03d\n" % number)
    one.close()
    kept = [each.read_text() for each in rotated(path)]
    assert [*kept, path.read_text()] == ["000\n001\n", "002\n003\n", "004\n005\n"]
    for number in range(5):
        one.open()
        assert one.prepare(10)
        one.write(b"%09d\n" % number)
        one.close()
    assert len(rotated(path)) == 2
    assert sorted(os.listdir(tmp_path)) == sorted(each.name for each in (*rotated(path), path))


def test_rotation_loses_nothing_and_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "out"
    asyncio.run(write(list(range(5000)), "file", path=str(path), rotate_bytes=2000))
    files = [*rotated(path), path]
    assert len(files) > 2
    assert "".join(each.read_text() for each in files) == _lines(0, 5000)


def test_a_file_that_was_moved_away_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "out"
    one = FileAppender(path)
    one.open()
    one.write(b"1\n")
    path.rename(tmp_path / "out.1")
    assert one.prepare(2)
    one.write(b"2\n")
    path.unlink()
    assert one.prepare(2)
    one.write(b"3\n")
    one.close()
    assert ((tmp_path / "out.1").read_text(), path.read_text()) == ("1\n", "3\n")


def test_what_was_half_written_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out"
    one = FileAppender(path)
    one.open()
    one.write(b"1\n")

    def full(descriptor: int, data: bytes) -> None:
        os.write(descriptor, data[:2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tidelog.flows.connectors.files.appending.write_all", full)
        with pytest.raises(OSError, match="No space"):
            one.write(b"2222\n")
    one.write(b"3\n")
    one.close()
    assert path.read_text() == "1\n3\n"
