"""A server on a damaged data directory refuses to start, with exit code 1 and one clear line, or it has exactly the
data that it had, and keeps what is written next. It never goes on with less, or with something else.

tests/persistence/test_damage.py tries more places, without a server.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.persistence.lmdbdamage import LmdbFile
from tests.wire.rawclient import Raw
from tidelog.testing import READY, free_port, running_server

SETTINGS = {"wal-size": "1mb", "save": "", "enable-debug-command": "yes", "stream-node-max-entries": "10"}
CHECKOUT = Path(__file__).resolve().parents[2]


class Started:
    """A server process on a directory. ``ready``: it accepts connections; else it has ended."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        words = [word for name, value in SETTINGS.items() for word in (f"--{name}", value)]
        command = [sys.executable, "-m", "_tidelog_server", "--port", str(self.port), "--dir", str(directory), *words]
        self.process = subprocess.Popen(
            command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if READY in line:
                break
        self.ready = any(READY in line for line in self.lines)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def started(directory: Path) -> Iterator[Started]:
    server = Started(directory)
    try:
        yield server
    finally:
        server.end()


def digest(raw: Raw) -> bytes:
    found = raw("DEBUG", "DIGEST")
    assert isinstance(found, bytes)
    return found


def refused(directory: Path, said: bytes, names: str = "") -> bool:
    """Start it. True if it was refused as it should be; False if the data is that of ``said`` and changes are kept."""
    with started(directory) as server:
        if not server.ready:
            assert server.process.wait(20) == 1
            last = server.lines[-1]
            assert str(directory) in last, server.lines
            assert names in last, server.lines
            assert "backup" in last, server.lines
            assert "Traceback" not in "".join(server.lines)
            return True
        with Raw(server.port) as raw:
            assert digest(raw) == said, "damage was accepted"
            keys = sorted(raw("KEYS", "string*"))
            raw.pipeline(*[("SET", key, "another") for key in keys[::3]], *[("DEL", key) for key in keys[1::3]])
            assert raw("SAVE") == b"OK"
            said = digest(raw)
    with started(directory) as server, Raw(server.port) as raw:
        assert digest(raw) == said, "what was acknowledged is undone by a restart"
    return False


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A directory after an orderly stop, so that all is in the store, and its digest."""
    path = tmp_path_factory.mktemp("saved") / "data"
    settings = {name.replace("-", "_"): value for name, value in SETTINGS.items()}
    with running_server(path, **settings) as server, Raw(server.port) as raw:
        for number in range(120):
            name = f"{number:03}" * 30
            raw("SET", "string" + name, "value" * 20)
            raw("TMAPPEND", name, "FIELDS", 1, "f", "VALUES", *range(25))
            raw("TREAD", name, "0", 3, "GROUP", "group" + name, 0, "RETRY", 10**12, 0)
            raw("TSTAGE", "stage" + name, 0, name, "FIELDS", 1, "f", "VALUES", 1, 2)
            raw("TSTAGE", "used" + name, 0, name, "FIELDS", 1, "f", "VALUES", 1, 2)
            assert raw("TPUBLISH", "fence" + name, 3, "used" + name) != []
        said = digest(raw)
    return path, said


@pytest.fixture
def copy(saved: tuple[Path, bytes], tmp_path: Path) -> tuple[Path, bytes]:
    return Path(shutil.copytree(saved[0], tmp_path / "data")), saved[1]


def test_it_is_whole(copy: tuple[Path, bytes]) -> None:
    assert not refused(*copy)


@pytest.mark.parametrize("name", ["strings", "groups", "stages", "fences", "streams", "nodes", "meta"])
def test_the_name_of_a_database_in_the_store(copy: tuple[Path, bytes], name: str) -> None:
    """Its content was gone without a word: LMDB made an empty database of the right name."""
    file = LmdbFile(copy[0] / "store" / "data.mdb")
    file.flip(file.names()[name.encode()] + 1)
    file.write()
    assert refused(*copy, names=f"database '{name}' is missing")


@pytest.mark.parametrize("name", ["log", "meta"])
def test_the_name_of_a_database_in_the_journal(copy: tuple[Path, bytes], name: str) -> None:
    file = LmdbFile(copy[0] / "journal" / "data.mdb")
    file.flip(file.names()[name.encode()] + 1)
    file.write()
    assert refused(*copy, names=f"database '{name}' is missing")


@pytest.mark.parametrize("name", [b"strings", b"nodes", b"groups", b"stages", b"fences"])
def test_a_separator(copy: tuple[Path, bytes], name: bytes) -> None:
    data = copy[0] / "store" / "data.mdb"
    places = list(LmdbFile(data).separators(name))
    outcomes = []
    for number, (start, _) in enumerate(places[:: max(1, len(places) // 2)]):
        work = Path(shutil.copytree(copy[0], copy[0].parent / f"work{number}"))
        file = LmdbFile(work / "store" / "data.mdb")
        file.flip(start + 7, (3, 5, 6)[number % 3])  # in the number of a stream or stage, or in a name's first digits
        file.write()
        outcomes.append(refused(work, copy[1], "store"))
    assert any(outcomes), "nothing was refused: the test shows too little"


@pytest.mark.parametrize("part", ["store", "journal"])
@pytest.mark.parametrize("how", ["forgotten", "first wiped", "second wiped"])
def test_a_meta_page(copy: tuple[Path, bytes], part: str, how: str) -> None:
    file = LmdbFile(copy[0] / part / "data.mdb")
    if how == "forgotten":
        file.forget_newest()
    else:
        file.wipe(how == "second wiped")
    file.write()
    # The journal's newest transaction has only cut what the store has.
    assert refused(*copy, names=part) or (part, how) == ("journal", "forgotten")


def test_a_meta_page_of_the_journal_after_a_large_batch(tmp_path: Path) -> None:
    """3,000 acknowledged entries were gone."""
    path = tmp_path / "data"
    with started(path) as server, Raw(server.port) as raw:
        raw("SET", "string", "value")
        raw("SAVE")
        raw("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *["x" * 500] * 3000)
        assert raw("TLEN", "s") == 3000
        said = digest(raw)
    assert not refused(Path(shutil.copytree(path, tmp_path / "whole")), said)
    file = LmdbFile(path / "journal" / "data.mdb")
    file.forget_newest()
    file.write()
    assert refused(path, said, "journal")


@pytest.mark.parametrize("part", ["store", "journal"])
def test_a_last_page_that_can_not_be(copy: tuple[Path, bytes], part: str) -> None:
    file = LmdbFile(copy[0] / part / "data.mdb")
    file.set_last_page(file.last_page | 1 << 38)
    file.write()
    assert refused(*copy, names="meta page is damaged")
