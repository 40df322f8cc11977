"""The process that reads sections: their order, and what a command waits for."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from persistence.tiering.reader import HistoryReader, RequestQueue
from storage.history import section

ENTRIES = 6  # of the section, in nodes of two


def test_sections_that_commands_wait_for_come_first() -> None:
    queue = RequestQueue()
    for number, urgent in enumerate([False, False, True, False, False, True, True, True]):
        queue.put({"id": number, "object": "o", "urgent": urgent, "nodes": [["a", 0, 1]]})
    for number in (4, 4, 2, 99):
        queue.put({"id": number, "urgent": True, "first": "a"})
    assert [queue.take()["id"] for _ in range(8)] == [2, 5, 6, 0, 7, 4, 1, 3], "each fourth one is one of the others"
    queue.put({"id": 8, "object": "o", "urgent": False, "nodes": [["a", 0, 1]]})
    queue.put({"id": 99, "urgent": True, "first": "a"})
    assert queue.take()["id"] == 8


@pytest.fixture
def request_of(tmp_path: Path) -> dict[str, Any]:
    """A request for all nodes of a section, for which no command waits."""
    wires = [b"*2\r\n$1\r\nn\r\n$1\r\n%d\r\n" % number for number in range(ENTRIES)]
    ids = [number << 64 for number in range(1, ENTRIES + 1)]
    raw = section.encode(b"s", 0, ENTRIES, ids, list(range(ENTRIES)), wires, section.new_compressor())
    (tmp_path / "target" / "objects").mkdir(parents=True)
    (tmp_path / "target" / "objects" / "o").write_bytes(raw)
    return {
        "id": 1, "object": "o", "offset": 0, "size": len(raw), "checksum": int.from_bytes(raw[:8], "little"),
        "nodes": [["a", 0, 2], ["b", 2, 2], ["c", 4, 2]], "urgent": False,
    }  # fmt: skip


def answers(request: dict[str, Any], directory: Path) -> list[tuple[list[str], bool, str]]:
    """Serve a request. Return of each answer: the digests, whether another one follows, the error."""
    output = io.StringIO()
    target, cache = str(directory / "target"), str(directory / "cache")
    reader = HistoryReader({"url": target, "seconds": 60, "directory": cache}, output)
    reader.open()
    reader.serve(request)
    lines = map(json.loads, output.getvalue().splitlines())
    found = [([name for name, _ in line.get("files", ())], "more" in line, line.get("error", "")) for line in lines]
    assert all((directory / "cache" / name).exists() for names, _, _ in found for name in names)
    return found


def test_a_command_waits_for_one_node_of_a_section(request_of: dict[str, Any], tmp_path: Path) -> None:
    assert answers(request_of, tmp_path) == [(["a", "b", "c"], False, "")]
    queue = RequestQueue()
    queue.put(request_of)
    queue.put({"id": 1, "urgent": True, "first": "b"})
    assert answers(queue.take(), tmp_path) == [(["b"], True, ""), (["a", "c"], False, "")]
    request_of["nodes"] = [["b", 2, 2]]
    assert answers(request_of, tmp_path) == [(["b"], False, "")]


def test_a_node_that_the_section_lacks(request_of: dict[str, Any], tmp_path: Path) -> None:
    request_of["urgent"] = True
    request_of["nodes"] = [["a", 0, 2], ["b", 5, 2]]
    (first, second) = answers(request_of, tmp_path)
    assert first == (["a"], True, "")
    assert second[2] == "objects/o is damaged at offset 0: it lacks entries from ordinal 5 on"
