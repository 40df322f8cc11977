"""Data directories of earlier versions open, with everything that is in them.

They were made by golden/make.py, which says what is in them and how to make more. The clock stands where the old
server's stood, so what was due then is due now, and nothing else is.
"""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest

from persistence.history import History
from persistence.store import Store
from persistence.storecopy import DATABASES, LATE
from persistence.wal import Wal
from respserver.testing import HandClock, start_in_thread
from storage.nodes import coder
from storage.nodes.coded import is_coded
from tests.persistence.golden.make import answer, comparable, plain
from tests.persistence.lmdbdamage import LmdbFile
from tests.wire.rawclient import Raw

HERE = Path(__file__).parent / "golden"
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in HERE.glob("*.tar.xz"))


class Golden:
    """A directory that an earlier version left, and what that version said about it."""

    def __init__(self, name: str, place: Path) -> None:
        self.name = name
        with tarfile.open(HERE / f"{name}.tar.xz") as packed:
            packed.extractall(place, filter="data")
        self.path = place / "data"
        self.said: dict[str, Any] = json.loads((HERE / f"{name}.json").read_text())

    @contextmanager
    def opened(self) -> Iterator[Raw]:
        """A connection to a server over it."""
        clock = HandClock(self.said["now"])
        with start_in_thread(self.path, clock, enable_debug_command="yes") as server, Raw(server.port) as raw:
            yield raw


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    return Golden(request.param, tmp_path)


def words_of(words: list[str | int]) -> tuple[bytes | str | int, ...]:
    """A command from JSON: arguments as bytes, its name as text."""
    return str(words[0]), *[word.encode("latin-1") if isinstance(word, str) else word for word in words[1:]]


def test_there_are_some() -> None:
    kinds = "store", "killed", "noted-store", "noted-killed", "patched-store", "patched-killed"
    later = {f"format{number}-{kind}" for number in (2, 3) for kind in ("store", "killed")}
    assert {f"format1-{kind}" for kind in kinds} | later <= set(NAMES)


def test_what_they_say_of_themselves(golden: Golden) -> None:
    """The first version counted nothing in the store and noted nothing in the WAL. A start adds the note at once."""
    noted = golden.name not in ("format1-store", "format1-killed")
    for turn in range(2):
        wal, store = Wal(golden.path / "tail"), Store(golden.path / "store")
        assert (wal.noted is not None) == (noted or bool(turn))
        with store.env.begin() as txn:
            assert (txn.get(b"content", db=store.meta) is not None) == (noted or bool(turn))
        wal.close()
        store.close()
        with golden.opened() as raw:
            assert raw("SET", "changed", "value") == b"OK"
            assert raw("SAVE") == b"OK"


def test_all_of_its_content_is_there(golden: Golden) -> None:
    for _ in range(2):  # as it came, and as today's server left it
        with golden.opened() as raw:
            for line in golden.said["reads"]:
                words = words_of(line[0])
                assert plain(comparable(words, raw(*words))) == line[1], words


@pytest.mark.interpreted
@pytest.mark.parametrize("kind", ["store", "killed"])
def test_without_c_the_same_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Coded nodes are read in Python where nothing was compiled; what such a server leaves has fewer of them."""
    monkeypatch.setattr(coder, "CODES", False)
    golden = Golden(f"format3-{kind}", tmp_path)
    test_all_of_its_content_is_there(golden)
    with golden.opened() as raw:
        raw("XADD", "readings", "1800000000000-0", "sensor", "01", "t", "1.5")
        assert raw("SAVE") == b"OK"
    monkeypatch.undo()
    with golden.opened() as raw:
        said = next(reply for words, reply in golden.said["reads"] if words[:2] == ["XRANGE", "readings"])
        assert plain(raw("XRANGE", "readings", "-", "1700000099999")) == said


def test_the_third_has_coded_nodes_and_segments(tmp_path: Path) -> None:
    """In the store: nodes of each stream that is to be coded, thinned ones too. In the journal: large batches."""
    golden = Golden("format3-killed", tmp_path)
    store = Store(golden.path / "store")
    assert store.format == 3
    with store.env.begin(db=store.nodes) as txn:
        coded = Counter(bytes(key[:8]) for key, value in txn.cursor() if is_coded(bytes(value)))
    store.close()
    assert len(coded) >= 3
    journal = golden.path / "journal"
    with lmdb.open(str(journal), max_dbs=9, readonly=True, lock=False) as env, env.begin() as txn:
        names = [bytes(name) for name, _ in txn.cursor()]
    assert b"segments" in names
    assert any(path.read_bytes().strip(b"\0") for path in journal.glob("segment.*"))


def test_it_works_on(golden: Golden) -> None:
    """Due messages, groups that eviction overtook, stages, fences: commands answer as the old server's did."""
    with golden.opened() as raw:
        for line in golden.said["then"]:
            words = words_of(line[0])
            assert plain(comparable(words, answer(raw, words))) == line[1], words
        assert raw("SAVE") == b"OK"
        digest = raw("DEBUG", "DIGEST")
    with golden.opened() as raw:
        assert raw("DEBUG", "DIGEST") == digest


def test_earlier_versions_could_go_on(golden: Golden) -> None:
    """A store that uses nothing new has no databases that they don't know."""
    with golden.opened() as raw:
        assert raw("SET", "changed", "value") == b"OK"
        assert raw("TMAPPEND", "plain", "FIELDS", 1, "n", "VALUES", *range(20))
        assert raw("SAVE") == b"OK"
    new = set() if golden.name.startswith("format1") else set(LATE)
    assert set(LmdbFile(golden.path / "store" / "data.mdb").names()) == set(DATABASES) - set(LATE) | new


def test_its_replicas_may_go_on(golden: Golden) -> None:
    """Its replication ID and log offset are those of before, or the ID is the previous one: the machine is another."""
    info = golden.said["info"]
    identity = (golden.path / "tidelog.format").read_text().split()[-1]
    history = History.load(golden.path, identity)
    assert history.id == info["master_replid"]
    if int(info["second_repl_offset"]) >= 0:
        assert history.previous[0] == (info["master_replid2"], int(info["second_repl_offset"]))
    else:
        assert history.previous == []
    with golden.opened() as raw:
        facts = dict(line.split(b":", 1) for line in raw("INFO", "replication").splitlines() if b":" in line)
        assert facts[b"master_repl_offset"] == info["log_offset"].encode()
        assert info["master_replid"].encode() in (facts[b"master_replid"], facts[b"master_replid2"])


def test_what_was_killed_left_something_in_each_file() -> None:
    """Or else these directories show too little."""
    info = json.loads((HERE / "format1-killed.json").read_text())["info"]
    assert 0 < int(info["log_store_offset"]) < int(info["log_journal_offset"]) < int(info["log_offset"])
    info = json.loads((HERE / "format1-store.json").read_text())["info"]
    assert int(info["second_repl_offset"]) > 0
