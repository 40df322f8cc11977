"""The checks of a storm with an object store, with files and streams that break the rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.persistence.tiering.kit import History
from tests.replication.cluster import cluster, wait_until
from tests.storm.histories import Histories
from tests.wire.rawclient import Raw

KEY = "x"
COUNT = 250


@pytest.fixture
def histories(tmp_path: Path) -> Iterator[Histories]:
    made = Histories("directory", tmp_path, ["1"])
    yield made
    made.close()


def entries_of(histories: Histories) -> list[Any]:
    return History(Path(histories.urls["1"])).entries(KEY.encode())


@pytest.fixture
def rows(histories: Histories) -> list[Any]:
    """The rows of a stream with an object below the prefix. The server does not run any more."""
    with cluster() as servers:
        settings: dict[str, Any] = {name.replace("-", "_"): value for name, value in histories.settings("1").items()}
        node = servers.node(**settings, stream_node_max_entries=50)
        with Raw(node.port) as client:
            entries = [("XADD", KEY, f"{at}-1", "v", f"value {at}") for at in range(COUNT)]
            client.pipeline(("MULTI",), *entries, ("EXEC",))  # no checkpoint has only some of them
            wait_until(lambda: len(entries_of(histories)) >= COUNT - 100, "objects that a manifest lists")
            return list(client("TRANGE", KEY, "-", "+"))


def test_an_intact_history(histories: Histories, rows: list[Any]) -> None:
    assert histories.problems() == []
    assert histories.differences({KEY: rows, "other": rows}) == []
    left = histories.left()
    assert all("/objects/" in name for name in left)
    counts = histories.counts([])
    assert (counts["objects"], counts["objects deleted"]) == (len(left), 0)


def test_damaged_and_missing_objects(histories: Histories, rows: list[Any]) -> None:
    manifest = History(Path(histories.urls["1"])).manifest(KEY.encode())
    assert manifest is not None
    path = Path(histories.urls["1"], "objects", manifest.parts[0].name)
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.chmod(0o600)
    path.write_bytes(content)
    (problem,) = histories.problems()
    assert "is damaged" in problem
    histories.look()
    path.unlink()
    (problem,) = histories.problems()
    assert path.name in problem
    assert histories.counts([])["objects deleted"] == 1


def test_objects_that_differ_from_the_stream(histories: Histories, rows: list[Any]) -> None:
    changed = [*rows[:20], [*rows[20][:2], b"another value"], *rows[21:]]
    (text,) = histories.differences({KEY: changed})
    assert re.search(r"1 entries are not as in the stream, such as \(20, 1\)", text)
    more = [*rows[:20], [b"19.7", b"v", b"lost by the object"], *rows[20:]]
    (text,) = histories.differences({KEY: more})
    assert re.search(r"such as \(19, 7\)", text)
    assert histories.differences({KEY: [*rows[:20], *rows[21:]]}) == [], "deleted entries remain in objects"


def test_what_is_left_at_the_end(histories: Histories) -> None:
    assert histories.left() == []
    top = Path(histories.urls["1"])
    for name in ("objects/a.tide", "pins/move-1.json"):
        (top / name).parent.mkdir()
        (top / name).touch()
    assert [text.removeprefix(f"{top}/") for text in histories.left()] == ["objects/a.tide", "pins/move-1.json"]
