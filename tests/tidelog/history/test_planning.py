"""Direct reads of a history, compared with the server."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from tests.tidelog.history.kit import ZERO, copy_all, entries_of, on_server, planner, read, tiered
from tests.waiting import eventually
from tests.wire.rawclient import Raw
from tidelog.client.entries import StreamId
from tidelog.history import sections
from tidelog.history.errors import HistoryError, NoHistoryError
from tidelog.history.files import HistoryFiles
from tidelog.history.index import frame_of
from tidelog.history.index import sections as sections_of
from tidelog.history.planning import StreamHistory
from tidelog.history.sections import ALL
from tidelog.testing import Server, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with tiered(tmp_path_factory.mktemp("target")) as running:
        yield running


def add(client: Raw, key: str | bytes, count: int) -> None:
    assert len(client.pipeline(*[("XADD", key, "*", "n", str(number)) for number in range(count)])) == count


def history_of(server: Server, key: str) -> StreamHistory:
    with planner(server) as plans:
        histories = plans.histories({key: ALL})
        assert plans.problems == {}
        return histories[key]


def parsed(entry_id: bytes) -> StreamId:
    return StreamId.parse(entry_id)


def change(client: Raw, rng: random.Random, key: str, number: int) -> None:
    """Execute a random command on a stream."""
    ids = [entry[0].replace(b"-", b".") for entry in client("XRANGE", key, "-", "+")]
    match rng.randrange(6):
        case 0 if ids:
            chosen = rng.sample(ids, rng.randrange(1, 1 + min(len(ids), 30)))
            client("XDEL", key, *[each.replace(b".", b"-") for each in chosen])
        case 1 if ids:
            client("XTRIM", key, "MINID", rng.choice(ids[: 1 + len(ids) // 3]).replace(b".", b"-"))
        case 2 if ids:
            client("XDEL", key, *[each.replace(b".", b"-") for each in ids[rng.randrange(len(ids)) :][:45]])
        case _:
            fields = [
                rng.choice([b"n", b"city", b"\x00\xff\r\n", b"", b"long" * 30])
                for _ in range(2 * rng.choice([1, 1, 2, 20]))
            ]
            for at in range(rng.randrange(1, 40)):
                later = f"{9_000_000_000_000 + 7 * number}-{at * rng.choice([1, 10**15])}"
                client("XADD", key, rng.choice(["*", later]), *fields)


@pytest.mark.parametrize("seed", range(3))
def test_the_same_entries_as_on_the_server(server: Server, seed: int) -> None:
    rng = random.Random(seed)
    keys = [f"{seed}:{name}" for name in ("a", "b/\u00e4", "c" * 200)]
    with Raw(server.port) as client:
        for number in range(60):
            change(client, rng, rng.choice(keys), number)
            if rng.random() < 0.1:
                copy_all(server)
    with planner(server) as plans:
        histories = plans.histories(dict.fromkeys(keys, ALL))
    assert plans.problems == {}
    assert histories or seed, "some streams are long enough"
    for key, history in histories.items():
        whole = on_server(server, key)
        ids = [parsed(entry[0]) for entry in whole] or [history.end]
        for number in range(10):
            after, end = sorted(rng.choices([ZERO, *ids], k=2)) if number else [ZERO, ids[-1]]
            expected = on_server(server, key, after, min(end, history.end)) if after < end else []
            piece = history.piece(after, end)
            assert read(piece) == expected
            if piece is not None:
                pieces = list(history.divided(piece, rng.choice([1, 200, 1000])))
                assert (pieces[0].after, pieces[-1].end) == (piece.after, piece.end)
                assert [each.after for each in pieces[1:]] == [each.end for each in pieces[:-1]]
                assert [entry for each in pieces for entry in read(each)] == expected


def test_both_implementations_decode_the_same(server: Server) -> None:
    with Raw(server.port) as client:
        add(client, "both", 95)
        ids = [entry[0] for entry in client("XRANGE", "both", "-", "+")]
        client("XDEL", "both", *ids[12:15])
        copy_all(server)
        client("XDEL", "both", *ids[30:70:3])
    history = history_of(server, "both")
    part, deleted = history.manifest.parts[-1], history.deleted.tobytes()
    assert len(deleted) > 16 * 10
    for record in sections_of(history.files, part, b"both", 0):
        section = history.files.read(f"objects/{part.name}", record.offset, record.offset + record.size)
        frame = frame_of(history.files, part, b"both", record, section, zstandard.ZstdDecompressor())
        after, end = parsed(ids[5].replace(b"-", b".")), parsed(ids[80].replace(b"-", b"."))
        assert sections.wire_of(frame, after, end, 3, deleted) == sections.interpreted(
            frame, after, end, 3, deleted
        )


def test_a_damaged_frame_is_refused() -> None:
    wire = pytest.importorskip("tidelog.history._section", reason="there was no compiler").wire
    whole = b"\x04\0\0\0\0\0\0\0\x02\0\0\0" + b"\0\1\1\0" + b"\x13\x13" + 2 * b"*2\r\n$1\r\nf\r\n$2\r\nvw\r\n"
    every = (0, 0), (9, 9), b""
    assert len(entries_of(bytes(wire(whole, 2, False, 0, 0, 0, *every)))) == 2
    for at in range(len(whole)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            changed = whole[:at] + bytes([value]) + whole[at + 1 :]
            for frame in (changed, changed[:at]):
                try:
                    wire(frame, 2, False, 0, 0, 0, *every)
                except ValueError:
                    continue
    with pytest.raises(ValueError, match="not as specified"):
        wire(whole[:-1], 2, False, 0, 0, 0, *every)
    with pytest.raises(ValueError, match="argument"):
        wire(whole, 2, False, 0, 0, 0, (0, 0), (9, 9), b"123")


def test_a_stream_that_was_created_again_or_renamed(server: Server) -> None:
    with Raw(server.port) as client:
        for key in ("old", "other"):
            for number in range(25):
                client("XADD", key, f"{number + 1}-0", "n", "v")
        copy_all(server)
        assert history_of(server, "old").end == StreamId(20)
        with planner(server) as plans:
            client("CONFIG", "SET", "tier-interval", "3600")
            client("RENAME", "other", "old")
            assert plans.histories({"old": ALL, "other": ALL}) == {}, "the manifest is that of another stream"
            client("CONFIG", "SET", "tier-interval", "0")
        for number in range(25, 45):
            client("XADD", "old", f"{number + 1}-0", "n", "v")
        copy_all(server)
        assert read(history_of(server, "old").piece(ZERO, StreamId(99))) == on_server(server, "old", end=StreamId(40))


def test_a_stream_without_history_and_a_server_without_tiering(server: Server) -> None:
    with Raw(server.port) as client:
        add(client, "short", 3)
    with planner(server) as plans:
        assert plans.histories({"short": ALL, "nokey": ALL}) == {}
        assert plans.problems == {}
    with running_server() as plain, planner(plain) as plans:
        with Raw(plain.port) as client:
            add(client, "a", 3)
        assert plans.histories({"a": ALL}) == {}
        assert isinstance(plans.problems["a"], NoHistoryError)


@pytest.mark.parametrize("fault", ["missing", "truncated", "changed"])
def test_damage_is_an_error_that_names_the_object_and_the_entries(server: Server, fault: str) -> None:
    key = f"damage:{fault}"
    with Raw(server.port) as client:
        add(client, key, 45)
    copy_all(server)
    history = history_of(server, key)
    (part,) = history.manifest.parts
    path = Path(history.files.url) / "objects" / part.name
    content = path.read_bytes()
    copy = Path(history.files.url).parent / f"copy-{fault}"
    shutil.copytree(history.files.url, copy)
    own = copy / "objects" / part.name
    piece = history.piece(ZERO, history.end)
    assert piece is not None
    moved = type(piece)(key, ZERO, history.end, str(copy), 60.0, piece.parts, 0, b"")
    assert len(read(moved)) == 40
    faults: dict[str, list[bytes | None]] = {"missing": [None], "truncated": [content[:100], content[:-1], b""]}
    changes = [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in range(17, len(content), 29)]
    for damaged in faults.get(fault) or changes:
        own.unlink() if damaged is None else own.write_bytes(damaged)
        with pytest.raises(HistoryError) as caught:
            read(moved)
        assert part.name in str(caught.value)
        if fault == "changed":
            assert f"of stream {key!r}" in str(caught.value)


def test_a_data_directory_that_was_replaced_by_an_older_copy(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    with tiered(tmp_path / "target") as server:
        with Raw(server.port) as client:
            client("SAVE")
            client("SET", "first", "1")
            copy_all(server)
            eventually(lambda: (tmp_path / "target" / "owner.json").exists())
        server.stop()
        shutil.copytree(server.directory, tmp_path / "backup")
        server.start()
        with Raw(server.port) as client:
            for number in range(35):
                client("XADD", "a", f"{number + 1}-0", "n", "old")
        copy_all(server)
        assert history_of(server, "a").end == StreamId(30)
        server.stop()
        shutil.rmtree(server.directory)
        shutil.copytree(tmp_path / "backup", server.directory)
        server.start()
        with Raw(server.port) as client:
            client("CONFIG", "SET", "tier-interval", "3600")
            for number in range(35):
                client("XADD", "a", f"{number + 1}-0", "n", "new")
        with planner(server) as plans:
            assert plans.histories({"a": ALL}) == {}


def test_a_directory_that_is_not_mounted() -> None:
    with pytest.raises(HistoryError, match="mount the directory"):
        HistoryFiles("/nonexistent/tide").names("streams/a")
    with pytest.raises(HistoryError, match="pip install"):
        HistoryFiles("nosuchscheme://bucket/tide")
