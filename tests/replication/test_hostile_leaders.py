"""What a leader may never do to a replica, whatever it sends: stall it, change its data, or make it unable to start."""

from __future__ import annotations

import itertools
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from zlib import crc32

import pytest

from persistence.layout import STRING, short, signed
from persistence.storecopy import ENTRY, META, STREAMS, STRINGS, Entry, entries
from replication.frames import (
    ALIVE,
    BATCH,
    COPY,
    COPY_BODY,
    CRC,
    DONE,
    DONE_BODY,
    FIRST,
    MESSAGE,
    PIECE,
    encode,
)  # fmt: skip
from storage.model import records
from storage.model.entries import entry_wire, id_bulk
from tests.persistence.datakit import append, checkpoint, opened
from tests.replication.cluster import Node, cluster, only_time, wait_until
from tests.replication.fakeleader import ID, FakeLeader, copy, copy_of, going_on
from tests.storage.keyspace.replaykit import append_record
from tests.wire.rawclient import Raw

BOUND = 3.0  # seconds that a PING may take on a busy machine; the stalls that are meant take minutes


@pytest.fixture(scope="module")
def replica() -> Iterator[Node]:
    with cluster() as made:
        node = made.node(repl_timeout=2)
        node("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(100))
        node("TREAD", "s", "0", 10, "GROUP", "g", 0, "RETRY", 1000, 0)
        node("SAVE")
        node("SET", "k", "v")
        yield node


class Pinger:
    """Sends a PING every few ms, on a connection of its own, and notes the longest wait for the answer."""

    def __init__(self, port: int) -> None:
        self.longest = 0.0
        self._end = threading.Event()
        self._port = port
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with Raw(self._port) as raw:
            while not self._end.wait(0.005):
                began = time.monotonic()
                answer = raw("PING")
                assert answer == b"PONG" or str(answer).startswith("LOADING"), answer
                self.longest = max(self.longest, time.monotonic() - began)

    def stop(self) -> None:
        self._end.set()
        self._thread.join()


@contextmanager
def unharmed(node: Node, restart: bool = True) -> Iterator[None]:
    """Whatever happens within, the node answers all the time, and has its old data: now, as leader, after a restart."""
    before, offset, lines = node.digest(), node.offset, len(node.output)
    pinger = Pinger(node.port)
    try:
        yield
        wait_until(lambda: node.say("GET", "k") == b"v", "it serves what it has")
        assert node.digest() == before
        assert only_time(offset, node.offset)
    finally:
        pinger.stop()
        node.lead()
    assert pinger.longest < BOUND
    assert not any("Traceback" in line or "never retrieved" in line for line in node.output[lines:])
    if restart:
        node.kill()
        node.start()
        assert (node.digest(), node.role) == (before, "master")
        assert only_time(offset, node.offset)
        assert node("SET", "k", "v")


def some_at_a_time(cases: Iterable[str], count: int = 10) -> list[list[str]]:
    """A restart after each case would take most of the time."""
    names = list(cases)
    return [names[at : at + count] for at in range(0, len(names), count)]


def refused(node: Node, fake: FakeLeader, reason: str) -> None:
    """The node follows ``fake``, says what is wrong with it, and tries again: not at once, and not in many lines."""
    lines = len(node.output)
    node.follow(fake.port)

    def said() -> list[str]:
        return [line for line in node.output[lines:] if f"Link to the leader 127.0.0.1:{fake.port}:" in line]

    wait_until(lambda: any(reason in line for line in said()), f"it says {reason!r}")
    wait_until(lambda: fake.lies + fake.links >= 2, "it tries again")
    assert len(said()) < 10
    assert all(len(line) < 500 for line in said())


# -- an answer to PSYNC --------------------------------------------------------------------------------------
PSYNC: dict[str, bytes] = {
    "an ID with capitals": b"+CONTINUE %b\r\n" % (b"F" * 40),
    "an ID with one wrong character": b"+CONTINUE %b\r\n" % (b"f" * 39 + b"g"),
    "an ID with a character that is two bytes": b"+CONTINUE %b\r\n" % ("f" * 39 + "é").encode(),
    "an ID with bytes that are no text": b"+CONTINUE %b\r\n" % (b"f" * 39 + b"\xff"),
    "an ID with a zero byte": b"+CONTINUE %b\r\n" % (b"f" * 39 + b"\0"),
    "an ID with a carriage return": b"+CONTINUE %b\r\r\n" % (b"f" * 39),
    "digits of another script": b"+CONTINUE %b\r\n" % ("٣" * 40).encode(),
    "two IDs": b"+CONTINUE %b %b\r\n" % (b"f" * 40, b"f" * 40),
    "tabs": b"+CONTINUE\t%b\r\n" % (b"f" * 40),
    "a copy with an ID with one wrong character": b"+FULLRESYNC %b 0\r\n" % (b"f" * 39 + b"x"),
    "a copy as of a negative offset": b"+FULLRESYNC %b -1\r\n" % (b"f" * 40),
    "a copy as of an offset that no log reaches": b"+FULLRESYNC %b 9223372036854775807\r\n" % (b"f" * 40),
    "a copy as of an offset of 5000 digits": b"+FULLRESYNC %b %b\r\n" % (b"f" * 40, b"9" * 4000),
    "a copy as of an offset with a sign": b"+FULLRESYNC %b +1\r\n" % (b"f" * 40),
    "a copy as of an offset with an underscore": b"+FULLRESYNC %b 1_0\r\n" % (b"f" * 40),
    "a copy as of an offset in digits of another script": b"+FULLRESYNC %b \xd9\xa3\r\n" % (b"f" * 40),
}


@pytest.mark.parametrize("name", PSYNC)
def test_answers_to_psync(name: str, replica: Node) -> None:
    answer = PSYNC[name]
    if b"FULLRESYNC" in answer:  # what follows is a sound copy, of an empty store
        answer += encode(COPY, 0, COPY_BODY.pack(0, 0)) + encode(DONE, 0, DONE_BODY.pack(0))
    with unharmed(replica), FakeLeader(answers={b"PSYNC": answer}) as fake:
        refused(replica, fake, "answered PSYNC with")


# -- a full copy ---------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Entry], int]:
    """A leader's store: its entries and its log offset."""
    with opened(tmp_path_factory.mktemp("leader")) as (log, ks, _):
        append(ks, b"a", 45)
        ks.set_string(b"s", b"value", 0)
        checkpoint(log, ks)
        copied = log.store.copy()
        return list(entries(b"".join(copied.pieces(1000)))), copied.offset


def last_byte(db: int) -> Callable[[list[Entry]], list[Entry]]:
    """An entry of that database that ends in another byte, and has the crc that is right for it."""

    def change(listed: list[Entry]) -> list[Entry]:
        at = [number for number, _, _ in listed].index(db)
        _, key, value = listed[at]
        return [*listed[:at], (db, key, signed(key, value[4:-1], bytes([value[-1] ^ 1]))), *listed[at + 1 :]]

    return change


COPIES: dict[str, tuple[Callable[[list[Entry]], list[Entry]], str]] = {
    "metadata that is nonsense": (last_byte(STREAMS), "the metadata of stream 1 is damaged"),
    "a number that is nonsense": (
        lambda listed: [(META, b"next_sid", signed(b"next_sid", b"\xff" * 8)), *listed[1:]], "next stream",
    ),
    "a key that LMDB does not take": (lambda listed: [(META, b"", signed(b"", b"")), *listed], "a key that LMDB"),
    "a stream without its nodes": (lambda listed: [e for e in listed if e[0] != 1], "damaged"),
    "nothing": (lambda listed: [], "as of log offset 0 instead of"),
}  # fmt: skip


@pytest.mark.parametrize("name", COPIES)
def test_copies_that_no_start_could_read(name: str, stored: tuple[list[Entry], int], replica: Node) -> None:
    change, reason = COPIES[name]
    listed, offset = stored
    with unharmed(replica), FakeLeader(lambda _: copy_of(change(listed), offset)) as fake:
        refused(replica, fake, reason)
        assert not replica.logged("The copy is in use")


def test_a_copy_of_other_pieces_than_announced(stored: tuple[list[Entry], int], replica: Node) -> None:
    listed, offset = stored
    with unharmed(replica), FakeLeader(lambda _: copy_of(listed, offset, len(listed) + 1)) as fake:
        refused(replica, fake, "instead of")


def test_a_sound_copy_is_taken(stored: tuple[list[Entry], int]) -> None:
    """So that the tests above are refused for what they change."""
    listed, offset = stored
    with cluster() as made, FakeLeader(lambda _: copy_of(listed, offset)) as fake:
        node = made.node()
        node.follow(fake.port)
        wait_until(lambda: node.link_up, "the copy is in use")
        assert (node("GET", "s"), node("TLEN", "a"), node.offset) == (b"value", 45, offset)
        assert node.info()["master_replid"] == ID
        node.lead()
        node.restart()
        assert (node("GET", "s"), node("TLEN", "a")) == (b"value", 45)


def test_a_copy_that_never_ends(replica: Node) -> None:
    """The old data is served meanwhile, and REPLICAOF NO ONE ends it."""

    def without_end(_: int) -> Iterator[bytes]:
        yield copy(9, encode(COPY, 9, COPY_BODY.pack((1 << 64) - 1, (1 << 64) - 1)))
        for number in itertools.count():
            key = short(b"%016d" % number)
            value = signed(key, STRING.pack(0, 16), key[1:], b"x" * 10_000)
            yield encode(PIECE, 9, ENTRY.pack(STRINGS, len(key), len(value)) + key + value)

    with unharmed(replica), FakeLeader(without_end) as fake:
        replica.follow(fake.port)
        wait_until(lambda: replica.info().get("master_sync_in_progress") == 1, "a copy arrives")
        wait_until(lambda: int(replica.info("stats")["total_net_repl_input_bytes"]) > 1 << 20, "more arrives")


# -- the handshake -------------------------------------------------------------------------------------------
def for_ever(part: bytes) -> Iterator[bytes]:
    while True:
        yield part


def slowly(part: bytes) -> Iterator[bytes]:
    for at in range(0, len(part), 100):
        time.sleep(0.001)
        yield part[at : at + 100]


HANDSHAKE: dict[str, tuple[Callable[[], bytes | Iterable[bytes]], str]] = {
    "a million empty lines": (lambda: b"\n" * 1_000_000, "empty lines"),
    "a million empty lines with carriage returns": (lambda: b"\r\n" * 1_000_000, "empty lines"),
    "empty lines for ever": (lambda: for_ever(b"\n" * 10_000), "empty lines"),
    "a line without an end": (lambda: for_ever(b"+" * 10_000), "no end"),
    "a line without an end, slowly": (lambda: slowly(b"+" * 5000), "no end"),
    "a line of a megabyte": (lambda: b"+" + b"x" * 1_000_000 + b"\r\n", "no end"),
    "zero bytes": (lambda: b"\0" * 100_000, "no end"),
    "a number": (lambda: b":1\r\n", "with"),
    "a bulk string": (lambda: b"$5\r\nhello\r\n", "with"),
    "a promise of 4 GiB": (lambda: b"$4294967295\r\n", "with"),
    "an array of arrays": (lambda: b"*1\r\n" * 1000, "with"),
    "a refusal": (lambda: b"-ERR no\r\n", "no"),
    "a refusal of bytes that are no text": (lambda: b"-\xff\xfe\x1b[31m\r\n", "\\x1b[31m"),
}


@pytest.mark.parametrize("stage", [b"PING", b"TIDELOG", b"HISTORY", b"PSYNC"], ids=bytes.decode)
def test_answers_in_the_handshake(stage: bytes, replica: Node) -> None:
    with unharmed(replica):
        for answer, reason in HANDSHAKE.values():
            with unharmed(replica, restart=False), FakeLeader(answers={stage: answer}) as fake:
                refused(replica, fake, reason)


# -- the stream ----------------------------------------------------------------------------------------------
LAST = 1 << 63
ENTRY_1 = entry_wire(id_bulk(LAST, 1), [b"f", b"v"])
BARE = b"*3\r\n\r\n$1\r\nf\r\n$1\r\nv\r\n"


def run(sizes: list[int], wire: bytes, seq: int = 1) -> bytes:
    return b"".join(records.run(b"s", LAST, seq, array("I", sizes), wire))


def one(wire: bytes, key: bytes = b"s", ms: int = LAST, seq: int = 1) -> bytes:
    return append_record(key, ms, seq, wire)


def staged(wire: bytes, ttl: int = 0) -> bytes:
    return b"".join(records.stage(b"stage", b"s", ttl, 0, array("I", [len(wire)]), wire))


# Records that no leader logs, with the right checksums.
RECORDS: dict[str, bytes] = {
    "no kind": records.HEAD.pack(0, 0),
    "a length beyond the batch": records.HEAD.pack(records.DELETE, 1 << 31) + b"k",
    "half a record": records.delete(b"k")[:-1],
    "an ID that does not grow": one(entry_wire(id_bulk(1, 1), [b"f", b"v"]), ms=1),
    "the ID 0.0": one(entry_wire(id_bulk(0, 0), [b"f", b"v"]), b"new", 0, 0),
    "an entry with another ID": one(entry_wire(id_bulk(LAST, 2), [b"f", b"v"])),
    "an entry of nothing": one(b""),
    "an entry whose key is longer than its record": records.APPEND_HEAD.pack(
        records.APPEND, records.APPEND_HEAD.size - 4, 1 << 31, LAST, 1) + b"s",
    "an entry that is junk": one(b"junk"),
    "an entry without pairs": one(b"*1\r\n" + id_bulk(LAST, 1) + b"\r\n"),
    "half a pair": one(entry_wire(id_bulk(LAST, 1), [b"f"])),
    "a longer count": one(ENTRY_1.replace(b"*3", b"*5")),
    "a shorter count": one(entry_wire(id_bulk(LAST, 1), [b"f", b"v", b"f", b"v"]).replace(b"*5", b"*3")),
    "a longer size": one(ENTRY_1.replace(b"$1\r\nv", b"$9\r\nv")),
    "a negative size": one(ENTRY_1.replace(b"$1\r\nv", b"$-1\r\nv")),
    "a size with a zero": one(ENTRY_1.replace(b"$1\r\nv", b"$01\r\nv")),
    "a number for a value": one(ENTRY_1.replace(b"$1\r\nv", b":1")),
    "another entry behind": one(ENTRY_1 + ENTRY_1),
    "a batch with a wrong entry": run([len(ENTRY_1)] * 2, ENTRY_1 * 2),
    "a batch with wrong sizes": run([len(ENTRY_1) - 1, 1], ENTRY_1),
    "a batch of none": run([], b""),
    "a batch beyond the last sequence number": run([len(ENTRY_1)] * 2, ENTRY_1 * 2, (1 << 64) - 1),
    "a batch that claims more": records.RUN_HEAD.pack(
        records.RUN, records.RUN_HEAD.size - 4, 1, LAST, 1, 1 << 31) + b"s",
    "eviction beyond the end": records.evict(b"s", 1 << 40, 1),
    "eviction to an ID beyond the end": records.evict(b"s", 5, (1 << 128) - 1),
    "eviction of nothing": records.evict(b"s", 0, 1),
    "a key that is not there": records.delete(b"nobody"),
    "a key beyond its record": records.KEY_TIME_HEAD.pack(records.SET, 12, 1 << 31, 0),
    "a time that no reply holds": records.set_string(b"k", b"v", (1 << 64) - 1),
    "an expiry that no reply holds": records.expire(b"k", 1 << 63),
    "a string's expiry that is taken away twice": records.expire(b"k", 0),
    "a stream's record for a string": one(ENTRY_1, b"k"),
    "a group of a string": records.group(b"k", b"g", 0, 0, 0),
    "a group without a name": records.group(b"s", b"", 0, 0, 0),
    "a group with an endless ttl": records.group(b"s", b"g", 0, (1 << 64) - 1, 0),
    "a group whose name is longer": records.GROUP_HEAD.pack(
        records.GROUP, records.GROUP_HEAD.size - 4, 1, 40, b"\0" * 16, 0, 0) + b"s" + records.set_string(b"k", b"v", 0),
    "a delivery for a group that is not there": records.deliver(
        b"s", b"no", 1, 1, 1, 0, 0, b"", 1, [b"\0" * 16], [], []),
    "a delivery at an impossible time": records.deliver(
        b"s", b"g", 1, 1, (1 << 64) - 1, 0, 0, b"", 1, [b"\0" * 16], [], []),
    "a delivery of more than it names": records.deliver(
        b"s", b"g", 1, 1, 1, 0, 0, b"", 1, [b"\0" * 16], [], [])[:-1] + b"\0" * 15,
    "a second delivery of what is not pending": records.deliver(
        b"s", b"g", 1, 1, 1, 0, 0, b"", 1, [], [(77).to_bytes(16, "big")], []),
    "an acknowledgement of what is not pending": records.ack(b"s", b"g", [b"\xff" * 16]),
    "an acknowledgement of half an ID": records.IDS_HEAD.pack(records.ACK, 8 + 2 + 3, 1, 1) + b"sg" + b"abc",
    "a due time that no reply holds": records.due(b"s", b"g", (1 << 64) - 1, [(1).to_bytes(16, "big")]),
    "a dead letter that is junk": records.drop(b"s", b"g", 1, "expired", b"dead", LAST, 1, b"junk"),
    "a dead letter with the ID 0.0": records.drop(
        b"s", b"g", 1, "expired", b"dead", 0, 0, entry_wire(id_bulk(0, 0), [b"f", b"v"])),
    "a dead letter for a string": records.drop(b"s", b"g", 1, "expired", b"k", LAST, 1, ENTRY_1),
    "the end of a group that is not there": records.destroy(b"s", b"no"),
    "a staged entry that is junk": staged(b"junk"),
    "a staged entry with an ID": staged(ENTRY_1),
    "a stage with an endless ttl": staged(BARE, (1 << 64) - 1),
    "a stage that is not there": records.publish(b"f", 1, b"", [b"no"], []),
    "a stage published to another stream": staged(BARE) + records.publish(b"f", 1, b"", [b"stage"], [(b"t", 1, 1)]),
    "a stage published as 0.0": staged(BARE).replace(b"stages", b"stagen") + records.publish(
        b"f", 1, b"", [b"stage"], [(b"n", 0, 0)]),
    "a stage published at an impossible epoch": staged(BARE) + records.publish(
        b"f", (1 << 64) - 1, b"", [b"stage"], [(b"s", LAST, 1)]),
    "a stage published with an endless check": staged(BARE) + records.publish(
        b"f", 1, b"x" * 256, [b"stage"], [(b"s", LAST, 1)]),
    "a stage dropped that is not there": records.unstage([b"no"]),
    "more than a flush": records.HEAD.pack(records.FLUSH, 3) + b"abc",
}  # fmt: skip


@pytest.mark.parametrize("names", some_at_a_time(RECORDS), ids=lambda names: names[0])
def test_records_that_no_leader_logs(names: list[str], replica: Node) -> None:
    """What came in the same batch before them is not applied either."""
    with unharmed(replica):
        for name in names:
            batch = records.set_string(b"new", b"v", 0) + RECORDS[name]
            with (
                unharmed(replica, restart=False),
                FakeLeader(lambda o, batch=batch: going_on(encode(BATCH, max(0, o), batch))) as fake,  # type: ignore[misc]
            ):
                refused(replica, fake, "a batch that can't be applied")


def test_batches_before_a_wrong_one_are_kept(replica: Node) -> None:
    good = records.set_string(b"k", b"w", 0)
    sent: list[int] = []

    def script(offset: int) -> bytes:
        sent.append(offset)
        bad = encode(BATCH, offset + len(good), records.delete(b"nobody"))
        return going_on(encode(BATCH, offset, good), bad) if len(sent) == 1 else b"-ERR no\r\n"

    before = replica.offset
    with FakeLeader(script) as fake:
        replica.follow(fake.port)
        wait_until(lambda: len(sent) >= 2, "it tries again")
        wait_until(lambda: replica.say("GET", "k") == b"w", "the sound batch is in use")
        assert sent[1] == -1, "it wants a full copy"
    replica.lead()
    replica.kill()
    replica.start()
    assert replica("GET", "k") == b"w"
    assert only_time(before + len(good), replica.offset)
    replica("SET", "k", "v")


FRAMES: dict[str, tuple[Callable[[int], bytes | Iterable[bytes]], str]] = {
    "a batch of 4 GiB": (lambda o: chain([promise(BATCH, o, (1 << 32) - 1)], for_ever(b"\0" * 65536)), "4294967295"),
    "a message of 4 GiB": (lambda _: promise(MESSAGE, 0, (1 << 32) - 1), "4294967295"),
    "a sign of life of 4 GiB": (lambda o: promise(ALIVE, o, (1 << 32) - 1), "4294967295"),
    "a long sign of life": (lambda o: encode(ALIVE, o, b"\0" * 100), "100 bytes"),
    "an empty sign of life": (lambda o: encode(ALIVE, o, b""), "0 bytes"),
    "an empty batch": (lambda o: encode(BATCH, o, b""), "0 bytes"),
    "an empty message": (lambda _: encode(MESSAGE, 0, b""), "0 bytes"),
    "a message shorter than its channel": (lambda _: encode(MESSAGE, 0, b"\xff" * 4), "shorter than its channel"),
    "a copy that begins now": (lambda o: encode(COPY, o, COPY_BODY.pack(1, 1)), "a copy that was not requested"),
    "the end of a copy": (lambda o: encode(DONE, o, DONE_BODY.pack(1)), "a copy that was not requested"),
    "junk for ever": (lambda _: for_ever(b"junk" * 1000), "not a frame"),
    "empty lines for ever": (lambda _: for_ever(b"\r\n" * 1000), "not a frame"),
}


def promise(kind: int, offset: int, length: int) -> bytes:
    """The head of a frame that is so long."""
    first = FIRST.pack(kind, offset, length, 0)
    return first + CRC.pack(crc32(first))


def test_frames_that_no_leader_sends(replica: Node) -> None:
    with unharmed(replica):
        for make, reason in FRAMES.values():

            def script(offset: int, make: Callable[[int], bytes | Iterable[bytes]] = make) -> Iterator[bytes]:
                yield going_on()
                made = make(max(0, offset))
                yield from [made] if isinstance(made, bytes) else made

            with unharmed(replica, restart=False), FakeLeader(script) as fake:
                refused(replica, fake, reason)
