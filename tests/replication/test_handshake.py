"""A replica's introduction: what is asked in which order, fed whole and byte by byte; what each refusal says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from replication.frames import LinkError
from replication.handshake import (
    LONGEST_LINE,
    Handshake,
    Introduction,
    Lineage,
    PsyncAnswer,
    ReplicationRefusedError,
    ShorterHistoryError,
    request,
)

pytestmark = pytest.mark.quick

ID = "0123456789abcdef0123456789abcdef01234567"

INTRODUCED = (
    b"*7\r\n$8\r\nREPLCONF\r\n$7\r\ntidelog\r\n$1\r\n1\r\n$4\r\ncapa\r\n$9\r\nformat-10\r\n$4\r\ncapa\r\n$6\r\nrepair\r\n"
)
# request, reply
PLAIN = [
    (b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n"),
    (INTRODUCED, b"+OK\r\n"),
    (b"*3\r\n$8\r\nREPLCONF\r\n$14\r\nlistening-port\r\n$4\r\n6380\r\n", b"+OK\r\n"),
    (b"*3\r\n$5\r\nPSYNC\r\n$1\r\n?\r\n$2\r\n-1\r\n", b"+FULLRESYNC %b 4711\r\n" % ID.encode()),
]
FULL = [
    (b"*1\r\n$4\r\nPING\r\n", b"-NOAUTH Authentication required.\r\n"),
    (b"*3\r\n$4\r\nAUTH\r\n$3\r\nann\r\n$6\r\nsecret\r\n", b"+OK\r\n"),
    (INTRODUCED, b"+OK\r\n"),
    (b"*3\r\n$8\r\nREPLCONF\r\n$14\r\nlistening-port\r\n$4\r\n6380\r\n", b"+OK\r\n"),
    (b"*3\r\n$8\r\nREPLCONF\r\n$10\r\nip-address\r\n$8\r\n10.0.0.2\r\n", b"+OK\r\n"),
    (b"*3\r\n$8\r\nREPLCONF\r\n$7\r\nhistory\r\n$9\r\n4700:1234\r\n", b"+OK\r\n"),
    (
        b"*4\r\n$5\r\nPSYNC\r\n$40\r\n%b\r\n$4\r\n4711\r\n$8\r\nFAILOVER\r\n" % ID.encode(),
        b"\n+CONTINUE %b\r\n" % ID.encode(),
    ),
]


OWNED = [
    PLAIN[0],
    (INTRODUCED.replace(b"*7", b"*9") + b"$4\r\ncapa\r\n$4\r\ntier\r\n", b"+OK\r\n"),
    (PLAIN[2][0], b"+OK %b\r\n" % ID.encode()),
    PLAIN[3],
]


def plain() -> Handshake:
    return Handshake(Introduction("?", -1, 6380))


def full() -> Handshake:
    return Handshake(Introduction(ID, 4711, 6380, "10.0.0.2", "ann", b"secret", (4700, 1234), failover=True))


@pytest.mark.parametrize("bytewise", [False, True])
@pytest.mark.parametrize(
    ("make", "script", "answer"), [(plain, PLAIN, PsyncAnswer(ID, 4711)), (full, FULL, PsyncAnswer(ID, -1))]
)
def test_golden(
    make: Callable[[], Handshake], script: list[tuple[bytes, bytes]], answer: PsyncAnswer, bytewise: bool
) -> None:
    handshake = make()
    sent = handshake.start()
    for asked, said in script:
        assert sent == asked
        assert handshake.answer is None
        sent = b"".join(handshake.feed(bytes([b])) for b in said) if bytewise else handshake.feed(said)
    assert sent == b""
    assert handshake.answer == answer
    assert handshake.rest == b""


def test_frames_behind_the_answer_are_kept() -> None:
    handshake = plain()
    handshake.start()
    for _, said in PLAIN[:-1]:
        handshake.feed(said)
    handshake.feed(PLAIN[-1][1] + b"C\n\r\nframe")
    assert handshake.rest == b"C\n\r\nframe"


REFUSALS = [
    (0, b"-NOAUTH Authentication required.\r\n", "set masterauth"),
    (0, b"-DENIED protected mode\r\n", "refuses PING .*protected mode"),
    (1, b"-ERR Unrecognized REPLCONF option: tidelog\r\n", "not a tidelog server"),
    (1, b"-NOAUTH Authentication required.\r\n", "not a tidelog server"),
    (1, b"-NOPERM User repl has no permissions to run the 'replconf' command\r\n", "may not replicate"),
    (3, b"-NOPERM User repl has no permissions to run the 'psync' command\r\n", "may not replicate"),
    (3, b"-NOMASTERLINK Can't SYNC while not connected with my master\r\n", "PSYNC with: NOMASTERLINK"),
    (3, b"+CONTINUE\r\n", "PSYNC with"),
    (3, b"+FULLRESYNC %b -5\r\n" % ID.encode(), "PSYNC with"),
    (3, b"+FULLRESYNC short 5\r\n", "PSYNC with"),
]


@pytest.mark.parametrize(("step", "said", "text"), REFUSALS)
def test_refusals_say_what_to_do(step: int, said: bytes, text: str) -> None:
    handshake = plain()
    handshake.start()
    for _, fine in PLAIN[:step]:
        handshake.feed(fine)
    with pytest.raises(ReplicationRefusedError, match=text):
        handshake.feed(said)


def test_a_wrong_password_is_named() -> None:
    handshake = full()
    handshake.start()
    handshake.feed(FULL[0][1])
    with pytest.raises(ReplicationRefusedError, match="masterauth"):
        handshake.feed(b"-WRONGPASS invalid username-password pair or user is disabled.\r\n")


@pytest.mark.parametrize(
    "junk", [b"HTTP/1.1 400 Bad Request\r\n", b"\x15\x03\x01\x00\x02\x02\n", b"x" * (LONGEST_LINE + 1)]
)
def test_other_protocols_are_refused(junk: bytes) -> None:
    handshake = plain()
    handshake.start()
    with pytest.raises(LinkError, match="not a tidelog server"):
        handshake.feed(junk)


def test_requests_are_resp() -> None:
    assert request("REPLCONF", "ACK", 12, b"\xff") == b"*4\r\n$8\r\nREPLCONF\r\n$3\r\nACK\r\n$2\r\n12\r\n$1\r\n\xff\r\n"


# -- the histories of both -----------------------------------------------------------------------------------
OTHER = "f" * 40


def introduced(data: Lineage | None, line: bytes) -> Handshake:
    """A handshake of a replica with this data, up to the reply in which the leader describes its history."""
    handshake = Handshake(Introduction("?", -1, 6380, lineage=data, keeps=True))
    handshake.start()
    handshake.feed(b"+PONG\r\n")
    handshake.feed(b"+OK" + line + b"\r\n")
    return handshake


def test_golden_description_of_a_history() -> None:
    both = Lineage(4711, {OTHER: 4711, ID: 100})
    assert both.encode() == f"4711 {OTHER}:4711 {ID}:100".encode()
    assert introduced(None, b" " + both.encode()).leader == both
    assert introduced(None, b"").leader is None


@pytest.mark.parametrize(
    ("end", "ids", "refused"),
    [(99, [OTHER], True), (0, [OTHER], True), (100, [OTHER], False), (99, [OTHER, ID], False), (99, [ID], False)],
)
def test_a_copy_of_less_data_of_another_history(end: int, ids: list[str], refused: bool) -> None:
    line = b" " + Lineage(end, dict.fromkeys(ids, end)).encode()
    if refused:
        with pytest.raises(ShorterHistoryError, match=r"log offset 100\) and is shorter.* REPLICAOF host port FORCE"):
            introduced(Lineage(100, {ID: 100}), line)
    else:
        introduced(Lineage(100, {ID: 100}), line)
    introduced(None, line)
    introduced(Lineage(0, {ID: 100}), line)


@pytest.mark.parametrize(
    "line",
    [
        b" 1", b" 1 " + b"a" * 40, b" x " + b"a" * 40 + b":1", b" 01 " + b"a" * 40 + b":1", b" 1  " + b"a" * 40 + b":1",
        b" 1 " + b"A" * 40 + b":1", b" 1 " + b"a" * 40 + b":-1", b" 1 " + b"a" * 40 + b":01", b" 1 aa:1", b"K",
    ],
)  # fmt: skip
def test_an_invalid_description(line: bytes) -> None:
    with pytest.raises(LinkError, match="the leader describes its history as"):
        introduced(None, line)


# -- logs that have diverged -----------------------------------------------------------------------------------
THIRD = "e" * 40


@pytest.mark.parametrize(
    ("own", "leader", "point"),
    [
        ({ID: 150}, {OTHER: 300, ID: 100}, (ID, 100)),  # an old leader, and the new one
        ({ID: 150, THIRD: 90}, {OTHER: 300, ID: 100, THIRD: 90}, (ID, 100)),
        ({ID: 100}, {OTHER: 300, ID: 100}, (ID, 100)),  # nothing to delete
        ({ID: 50}, {OTHER: 300, ID: 100}, (ID, 50)),
        ({ID: 150, OTHER: 100}, {OTHER: 300}, (OTHER, 100)),  # it has led, and the others have not noticed
        ({ID: 150, OTHER: 100}, {OTHER: 100}, (OTHER, 100)),
        ({ID: 150, OTHER: 100}, {OTHER: 80}, None),  # the leader has less: it may only be late
        ({ID: 150}, {ID: 100}, None),
        ({ID: 150, THIRD: 90}, {OTHER: 300, THIRD: 120}, (THIRD, 90)),  # two new leaders
        ({ID: 150}, {OTHER: 300}, None),
    ],
)
def test_where_two_histories_diverged(
    own: dict[str, int], leader: dict[str, int], point: tuple[str, int] | None
) -> None:
    assert Lineage(1, own).diverged(Lineage(1, leader)) == point


@pytest.mark.parametrize("possible", [True, False])
def test_a_replica_asks_to_continue_from_there(possible: bool) -> None:
    who = Introduction(
        ID, 150, 6380, history=(140, 1), longer=(0, 2), lineage=Lineage(150, {ID: 150}), keeps=True,
        rewind=lambda offset: (offset - 10, 77) if possible else None,
    )  # fmt: skip
    handshake = Handshake(who)
    handshake.start()
    handshake.feed(b"+PONG\r\n")
    assert handshake.feed(f"+OK 300 {OTHER}:300 {ID}:100\r\n".encode()) == request("REPLCONF", "listening-port", 6380)
    history = handshake.feed(b"+OK\r\n")
    psync = handshake.feed(b"+OK\r\n")
    if possible:
        assert history == request("REPLCONF", "history", "90:77")
        assert psync == request("PSYNC", ID, 100)
    else:
        assert history == request("REPLCONF", "history", "140:1", "history", "0:2")
        assert psync == request("PSYNC", ID, 150)
    assert (who.offset, who.rewound) == ((100, True) if possible else (150, False))


def test_a_replica_asks_by_an_id_that_its_leader_knows() -> None:
    """As after a crash right after the log was rewound: the newer IDs are those of no other server."""
    points = {ID: 90, THIRD: 90}
    who = Introduction(ID, 90, 6380, history=(80, 1), lineage=Lineage(90, points), rewind=lambda _: None)
    handshake = Handshake(who)
    handshake.start()
    handshake.feed(b"+PONG\r\n")
    handshake.feed(f"+OK 300 {OTHER}:300 {THIRD}:100\r\n".encode())
    assert handshake.feed(b"+OK\r\n") == request("REPLCONF", "history", "80:1")
    assert handshake.feed(b"+OK\r\n") == request("PSYNC", THIRD, 90)
    assert not who.rewound


@pytest.mark.parametrize(
    ("said", "owner"), [(b"+OK " + ID.encode(), ID), (b"+OK", ""), (b"+OK " + ID.upper().encode(), ""), (b"+OK x", "")]
)
def test_the_owner_of_the_leaders_history(said: bytes, owner: str) -> None:
    handshake = Handshake(Introduction("?", -1, 6380, tier=True))
    sent = handshake.start()
    for expected, answer in OWNED:
        assert sent == expected
        sent = handshake.feed(said + b"\r\n" if answer.startswith(b"+OK ") else answer)
    assert (handshake.owner, handshake.answer) == (owner, PsyncAnswer(ID, 4711))
