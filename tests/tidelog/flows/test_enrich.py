"""``enrich``: rows by key, changed files, files that are not valid, and a file that does not exist yet."""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tidelog.flows import op
from tidelog.flows.declare import Op, operator_spec
from tidelog.flows.operators.lookuptable import discard, file_format, key_of, load, row_of
from tidelog.flows.testing import PipelineTest
from tidelog.options.structs import Problems

ROOT = Path(__file__).parents[3]
CSV = "id,name\n7,Ann\n8,Bob\n"


@contextmanager
def running(file: Path, **options: Any) -> Iterator[PipelineTest]:
    given = {"file": str(file), "by": "id", "key": "id", "set": {"who": "name"}, "every": "5s", **options}
    with PipelineTest(op("enrich", **given)) as test:
        yield test


def replace(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)


def found(test: PipelineTest, number: Any = 7) -> Any:
    test.feed({"id": number})
    return test.outputs()[-1].get("who")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", CSV),
        ("b.csv", '\ufeffname,id\r\n"Ann",7\r\n\r\nBob,8\r\n'),
        ("a.json", '[{"id": 7, "name": "Ann"}, {"id": "8", "name": "Bob"}]'),
        ("a.jsonl", '{"id": 7, "name": "Ann"}\n\n{"id": 8.0, "name": "Bob"}\n'),
    ],
)
def test_formats(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with running(file) as test:
        assert [found(test, key) for key in (7, "7", 8, 8.0, "9", None)] == ["Ann", "Ann", "Bob", "Bob", None, None]


def test_an_object_by_its_fields_and_the_event_in_expressions(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"a": {"x": [1]}, "b": 2}')
    options = {"by": None, "key": "k", "set": {"row": "@", "in.n": "$event.n + 1"}}
    with running(file, **options) as test:
        test.feed({"k": "a", "n": 1}, {"k": "a", "n": 2}, {"k": "b", "n": 3})
        first, second, third = test.outputs()
    assert (first["row"], first["in"], third["row"]) == ({"x": [1]}, {"n": 2}, 2)
    assert first["row"] is not second["row"]
    assert first["row"]["x"] is not second["row"]["x"]


def test_events_without_a_row_go_to_a_port(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(CSV)
    with running(file, missing="other") as test:
        test.feed({"id": 7}, {"id": 9}, {}, {"id": [1]})
        assert test.outputs() == [{"id": 7, "who": "Ann"}]
        assert test.outputs("other") == [{"id": 9}, {}]
        (failed,) = test.output_events("err")
        assert failed.meta["error"] == "ValueError: the key is [1]: it must be a string or a number"


def test_a_replaced_file_is_read_at_the_next_check(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(CSV)
    with running(file) as test:
        assert found(test) == "Ann"
        replace(file, "id,name\n7,Eve\n")
        assert found(test) == "Ann"
        test.advance(5)
        assert found(test) == "Eve"


def test_a_file_that_is_written_in_place_is_read_when_it_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(CSV)
    with running(file) as test:
        assert found(test) == "Ann"
        file.write_text("id,name\n7,E")
        test.advance(5)
        assert found(test) == "Ann"
        file.write_text("id,name\n7,Eve\n")
        test.advance(5)
        assert found(test) == "Ann"
        test.advance(5)
        assert found(test) == "Eve"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file has no header"),
        ("name\nAnn\n", "there is no column 'id': the columns are name"),
        ("id,name\n7\n", "line 2 has 1 fields for 2 columns"),
        ("id,name\n7,Eve\n7,Ann\n", "row 2: there is another row with the key '7'"),
        ('id,name\n7,"Eve\n', "not CSV: unexpected end of data"),
        ("x" * 3000, "the file has 3,000 bytes: max_bytes is 2,000"),
    ],
)
def test_a_broken_version_keeps_the_old_rows(
    tmp_path: Path, text: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "a.csv"
    file.write_text(CSV)
    caplog.set_level(logging.WARNING, "tidelog.flows")
    with running(file, max_bytes=2000) as test:
        assert found(test) == "Ann"
        replace(file, text)
        test.advance(20)
        assert found(test) == "Ann"
        (warning,) = caplog.messages
        assert f"{file}: {said}; the rows of the last valid version remain in use" in warning
        replace(file, "id,name\n7,Eve\n")
        test.advance(5)
        assert found(test) == "Eve"


def test_a_deleted_file_keeps_the_old_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "a.csv"
    file.write_text(CSV)
    with running(file) as test:
        assert found(test) == "Ann"
        file.unlink()
        test.advance(60)
        assert found(test) == "Ann"
        assert next(each for each in caplog.messages if "No such file" in each).endswith("remain in use")
        file.write_text("id,name\n7,Eve\n")
        test.advance(10)
        assert found(test) == "Eve"


def test_events_wait_until_the_file_has_been_read(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    with running(file) as test:
        test.feed({"id": 7})
        test.advance(60)
        assert test.outputs() == []
        (reasons,) = test.running.reasons().values()
        assert any(each.reason == "unreadable:pipeline.0" and str(file) in each.detail for each in reasons), reasons
        file.write_text("id\n7\n")
        test.advance(30)
        assert test.outputs() == [{"id": 7, "who": None}]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"file": "a.txt"}, "the format of 'a.txt' is not known: set format to csv, json, or jsonl"),
        ({"by": None}, "by is missing"),
        ({"set": {}}, "set is empty"),
        ({"set": {"a": "$evnt"}}, "there is no variable $evnt; known are $event"),
        ({"missing": "out"}, "out"),
        ({"key": "a +"}, "key 'a +': "),
    ],
)
def test_check_reports_what_is_wrong(options: dict[str, Any], said: str) -> None:
    problems = Problems()
    given = {"file": "a.csv", "by": "id", "key": "id", "set": {"who": "name"}, **options}
    assert operator_spec(Op("enrich", given), "p[0]", problems) is None
    assert said in problems.found[0][1]


@pytest.mark.parametrize(
    ("name", "text", "by", "said"),
    [
        ("a.json", "{", None, "not valid: "),
        ("a.json", "[1]", "id", "a row is 1: it must be an object"),
        ("a.json", '[{"id": 1}]', None, "the file is a list of rows: set by"),
        ("a.json", '{"a": 1}', "id", "the file is an object, so its fields are the keys: omit by"),
        ("a.jsonl", '{"id": 1}\n{"x": 1}', "id", "row 2 has no id"),
        ("a.jsonl", "[1", "id", "not valid: "),
    ],
)
def test_files_that_are_not_valid(tmp_path: Path, name: str, text: str, by: str | None, said: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    kind: Any = file.suffix[1:]
    with pytest.raises(ValueError, match=r".") as caught:
        load(str(file), kind, by, ",", 1000)
    assert said in str(caught.value)
    file.write_bytes(b"id\n\xff\n")
    with pytest.raises(ValueError, match="not UTF-8"):
        load(str(file), "csv", "id", ",", 1000)
    with pytest.raises(ValueError, match="the key is True"):
        key_of(True)


def test_the_example_runs(tmp_path: Path) -> None:
    payments = [{"id": 1, "amount": 10, "currency": "USD"}, {"id": 2, "amount": 1, "currency": "XXX"}]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RATES": str(ROOT / "examples" / "flows" / "rates.json")}
    example = ROOT / "examples" / "flows" / "rates.yaml"
    done = subprocess.run(
        [sys.executable, "-m", "tidelog.cli", "flow", "run", str(example), "--listen", "none"], cwd=tmp_path,
        env=environment, input="".join(f"{json.dumps(each)}\n" for each in payments), capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {**payments[0], "euros": 9.2}
    assert json.loads((tmp_path / "unknown.jsonl").read_text()) == payments[1]


@pytest.mark.parametrize("name", ["a.csv", "a.json", "b.json", "a.jsonl"])
def test_the_garbage_collector_does_not_track_the_rows(tmp_path: Path, name: str) -> None:
    """Otherwise, its collections stop the event loop for 100 ms and more when a large file is reloaded."""
    rows = [{"id": str(number), "tags": ["a"], "geo": {"lat": number}} for number in range(10)]
    file = tmp_path / name
    if name == "a.csv":
        file.write_text(CSV)
    elif name == "a.jsonl":
        file.write_text("\n".join(map(json.dumps, rows)))
    else:
        file.write_text(json.dumps(rows if name == "a.json" else {row["id"]: row for row in rows}))
    _, table = load(str(file), file_format(name), None if name == "b.json" else "id", ",", 1 << 20)
    assert not any(map(gc.is_tracked, table.values()))
    assert row_of(table, "7") == ({"id": "7", "name": "Ann"} if name == "a.csv" else rows[7])
    discard(table)
    assert not table
