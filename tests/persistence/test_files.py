"""Every file of a data directory, with a byte changed, cut, empty, or missing: a start refuses it with a text that says
where, or it does no harm at all. A damaged node is met when it is read."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from persistence.fullcopy import READY, Incoming
from persistence.history import History
from persistence.wal import BLOCK, FRAME
from resp.errors import CorruptError
from tests.persistence.datakit import RING, append, checkpoint, commit, crashed, group, opened

StoreContent = tuple[Path, str, str, int]  # directory; its digest, history ID and log offset

HARMLESS = {  # whatever happens to them
    "lock", "store/lock.mdb", "journal/lock.mdb", "replicas", "tail.new", "replication.new", "journal/data.mdb.new",
    "tidelog.making", "incoming/store/data.mdb",
}  # fmt: skip
FILES = sorted({"tail", "tidelog.format", "replication", "journal/data.mdb", "store/data.mdb"} | HARMLESS)
COPIED = ["tail", "journal/data.mdb", "store/data.mdb", "replication", "whole"]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> StoreContent:
    """A part in the store, one in the journal, and one in the WAL; and all that a kill may leave."""
    path = tmp_path_factory.mktemp("killed") / "data"
    with opened(path, journal_flush_ms=100_000) as (log, ks, _):
        append(ks, b"a", 45)
        group(ks, b"a", b"g", 5)
        ks.log.clear()
        checkpoint(log, ks)
        log.history.shift(log.offset)
        log.save_history()
        log.note_replicas(True)
        ks.set_string(b"large", b"x" * 2 * RING)  # straight into the journal
        commit(log, ks)
        for number in range(8):
            ks.set_string(b"s%d" % number, b"value")
            commit(log, ks)
        facts = ks.digest(), log.history.id, log.offset
        copy = crashed(path)
    for name in ("tail.new", "replication.new", "journal/data.mdb.new", "tidelog.making", "incoming/store/data.mdb"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(b"left by a kill" * 100)
    return copy, *facts


def outcome(path: Path, content: StoreContent) -> bool:
    """True if it is refused; False if all is there, under the same ID, and goes on."""
    try:
        with opened(path) as (log, ks, _):
            assert (ks.digest(), log.history.id, log.offset) == content[1:], "damage was accepted"
            ks.set_string(b"s", b"another")
            checkpoint(log, ks)
            digest = ks.digest()
    except CorruptError as error:
        assert str(path) in str(error) or "the store is damaged at stream" in str(error)  # noqa: PT017
        assert "backup" in str(error) or "choose another dir" in str(error) or "newer" in str(error)  # noqa: PT017
        return True
    with opened(path) as (_, ks, _):
        assert ks.digest() == digest
    return False


def places(name: str, raw: bytes) -> list[int]:
    """Bytes to change. Not in the WAL's last frame: what is torn there was never acknowledged, or so it looks."""
    rng = random.Random(name)
    if name == "tail":
        frames = range(BLOCK, BLOCK + RING, BLOCK)
        whole = [at for at in frames if raw[at : at + 2] == b"TF" and FRAME.unpack_from(raw, at)[2] > 0]
        return [*range(0, 28, 3), *(at + rng.randrange(FRAME.size + 20) for at in whole[:-1])]
    if name.endswith("data.mdb"):
        used = [at for at in range(len(raw)) if raw[at]]
        return rng.sample(used, min(40, len(used)))
    return list(range(0, min(len(raw), 200), 7))


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte(tmp_path: Path, killed: StoreContent, name: str) -> None:
    raw = (killed[0] / name).read_bytes()
    refused = 0
    for number, at in enumerate(places(name, raw)):
        path = Path(shutil.copytree(killed[0], tmp_path / f"data{number}"))
        (path / name).write_bytes(raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1 :])
        refused += outcome(path, killed)
        shutil.rmtree(path)
    assert bool(refused) == (name not in HARMLESS)


@pytest.mark.parametrize("how", ["cut", "empty", "missing", "garbage"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_not_whole(tmp_path: Path, killed: StoreContent, name: str, how: str) -> None:
    path = Path(shutil.copytree(killed[0], tmp_path / "data"))
    raw = (path / name).read_bytes()
    if how == "missing":
        (path / name).unlink()
    else:
        (path / name).write_bytes({"cut": raw[: len(raw) // 2], "empty": b"", "garbage": b"\xa5" * 5000}[how])
    assert outcome(path, killed) == (name not in HARMLESS)


# -- a full copy that waits to be installed ------------------------------------------------------------------
@pytest.fixture(scope="module")
def arrived(tmp_path_factory: pytest.TempPathFactory) -> StoreContent:
    place = tmp_path_factory.mktemp("arrived")
    with opened(place / "leader") as (leader, ks, _), opened(place / "data") as (old, old_ks, _):
        append(old_ks, b"old", 30)
        commit(old, old_ks)
        append(ks, b"a", 45)
        ks.set_string(b"s", b"value")
        checkpoint(leader, ks)
        copy, incoming = leader.store.copy(), Incoming(place / "data", RING)
        for piece in copy.pieces(1000):
            incoming.add(piece)
        incoming.finish(copy.offset, copy.entries, History("a" * 40))
        copy.close()
        digest, offset = ks.digest(), leader.offset
    return place / "data", digest, "a" * 40, offset


@pytest.mark.parametrize("how", ["cut", "empty", "missing", "garbage"])
@pytest.mark.parametrize("name", COPIED)
def test_a_copy_that_is_not_whole(tmp_path: Path, arrived: StoreContent, name: str, how: str) -> None:
    path = Path(shutil.copytree(arrived[0], tmp_path / "data"))
    file = path / READY / name
    raw = file.read_bytes()
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes({"cut": raw[: len(raw) // 2], "empty": b"", "garbage": b"\xa5" * 5000}[how])
    assert outcome(path, arrived) == (name != "whole")


@pytest.mark.slow
@pytest.mark.parametrize("name", COPIED[:-1])
def test_a_changed_byte_in_a_copy(tmp_path: Path, arrived: StoreContent, name: str) -> None:
    raw = (arrived[0] / READY / name).read_bytes()
    bytes_to_change = range(28) if name == "tail" else places(name, raw)
    refused = 0
    for number, at in enumerate(bytes_to_change):
        path = Path(shutil.copytree(arrived[0], tmp_path / f"data{number}"))
        (path / READY / name).write_bytes(raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1 :])
        refused += outcome(path, arrived)
        shutil.rmtree(path)
    assert refused
