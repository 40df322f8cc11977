"""Everything that clients make grow is counted in used_memory, with the client where it is a client's, or is refused;
and it is not counted any more when it is gone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from respserver.testing import RunningServer
from tests.wire.rawclient import Raw, pack
from tests.wire.test_maxmemory import OOM, limit, used

Connect = Callable[..., Raw]
Command = tuple[Any, ...]
MB = 1 << 20
LONG = b"n" * 100_000
PATTERN = b"?x*" * 1_300  # an automaton: its tables take many times its length


def tot_mem(c: Raw, client_id: int) -> int:
    [line] = [line for line in c("CLIENT", "LIST", "ID", client_id).decode("latin-1").splitlines() if line]
    return int(line.split(" tot-mem=")[1].split()[0])


def names(count: int = 12) -> list[bytes]:
    return [LONG + b"%d" % number for number in range(count)]


# -- what a client keeps: the calls that make it keep it, and the call that ends that ----------
KEPT: dict[str, tuple[list[Command], Command]] = {
    "WATCH": ([("WATCH", *names())], ("UNWATCH",)),
    "WATCH, ended by EXEC": ([("WATCH", *names()), ("MULTI",)], ("EXEC",)),
    "many WATCHes": ([("WATCH", *range(5_000))], ("UNWATCH",)),
    "SUBSCRIBE": ([("SUBSCRIBE", name) for name in names()], ("RESET",)),
    "SSUBSCRIBE": ([("SSUBSCRIBE", name) for name in names()], ("RESET",)),
    "PSUBSCRIBE": ([("PSUBSCRIBE", b"p" * 4_000 + b"%d" % number) for number in range(300)], ("RESET",)),
    "many SUBSCRIBEs": ([("SUBSCRIBE", number) for number in range(3_000)], ("RESET",)),
    "CLIENT SETNAME": ([("CLIENT", "SETNAME", b"n" * MB)], ("CLIENT", "SETNAME", "")),
    "HELLO SETNAME": ([("HELLO", 2, "SETNAME", b"n" * MB)], ("RESET",)),
    "CLIENT SETINFO": (
        [("CLIENT", "SETINFO", "LIB-NAME", b"n" * MB)], ("CLIENT", "SETINFO", "LIB-NAME", "")
    ),
    "CLIENT SETINFO's version": (
        [("CLIENT", "SETINFO", "LIB-VER", b"n" * MB)], ("CLIENT", "SETINFO", "LIB-VER", "")
    ),
    "MULTI": ([("MULTI",), *[("SET", "k", LONG)] * 12], ("DISCARD",)),
}  # fmt: skip


@pytest.mark.parametrize("what", KEPT)
def test_what_a_client_keeps(c: Raw, connect: Connect, what: str) -> None:
    calls, end = KEPT[what]
    client = connect()
    number = client("CLIENT", "ID")
    before, mine = used(c), tot_mem(c, number)
    for _ in range(2):
        for call in calls:
            client(*call)
        grown = used(c)
        assert grown > before + MB // 2
        assert tot_mem(c, number) > mine + MB // 2
        for call in calls:  # once more: nothing new
            if call[0] in ("WATCH", "SUBSCRIBE", "SSUBSCRIBE", "PSUBSCRIBE") and len(calls) != 2:
                client(*call)
        assert abs(used(c) - grown) < 5_000
        client(*end)
        assert abs(used(c) - before) < 5_000
        assert abs(tot_mem(c, number) - mine) < 5_000
    for call in calls:
        client(*call)
    client.close()
    while used(c) > before:
        pass


@pytest.mark.parametrize("call", [
    ("TREAD", b"k" * MB, "$", 10, "BLOCK", 0),
    ("TREAD", b"k" * MB, "", 10, "BLOCK", 0, "GROUP", "g", 0),
    ("TWAIT", 0, b"k" * MB, ""),
    ("TWAIT", 0, *[word for number in range(5_000) for word in (number, "")]),
    ("XREAD", "BLOCK", 0, "STREAMS", b"k" * MB, "$"),
    ("XREAD", "BLOCK", 0, "STREAMS", *range(5_000), *["$"] * 5_000),
], ids=lambda call: f"{call[0]}-{len(call)}")  # fmt: skip
def test_what_a_client_waits_for(c: Raw, connect: Connect, call: Command) -> None:
    client = connect()
    number = client("CLIENT", "ID")
    before = used(c)
    client.send(*["0" if word == "$" and call[0] == "TREAD" else word for word in call])
    while b" flags=b" not in c("CLIENT", "LIST", "ID", number):
        pass
    assert used(c) > before + MB // 2
    assert tot_mem(c, number) > MB // 2


def test_a_login_that_has_to_wait(c: Raw, connect: Connect) -> None:
    client = connect()
    number = client("CLIENT", "ID")
    for _ in range(10):
        client("AUTH", "nobody", "x")
    client.send("AUTH", "nobody", b"p" * MB)
    while b" flags=b" not in c("CLIENT", "LIST", "ID", number):
        pass
    assert tot_mem(c, number) > MB


def test_a_command_that_has_not_ended(c: Raw, connect: Connect) -> None:
    client = connect()
    number = client("CLIENT", "ID")
    client.sock.sendall(pack("SET", "k", b"x" * MB)[:-10])
    while tot_mem(c, number) < MB // 2:
        pass
    assert used(c) > MB // 2


def test_compiled_patterns(c: Raw, connect: Connect) -> None:
    client = connect()
    client("PING")  # now the server has accepted it, and counts it
    before = used(c)
    client("PSUBSCRIBE", PATTERN)
    assert used(c) > before + 100_000
    client("PUNSUBSCRIBE", PATTERN)
    assert used(c) == before


def test_prefixes_of_tracking(c: Raw, connect: Connect) -> None:
    before = used(c)
    clients = [connect(3) for _ in range(4)]
    for client in clients:
        assert client("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", LONG) == b"OK"
    assert used(c) > before + 5 * len(LONG)  # one for all, and one each
    for client in clients:
        client("CLIENT", "TRACKING", "OFF")
    assert abs(used(c) - before) < 30_000


# -- what is everybody's: the calls, and those that end it -------------------------------------------------------------
SHARED: dict[str, tuple[list[Command], list[Command]]] = {
    "names of stages": (
        [("TSTAGE", b"s" * 1000 + b"%d" % n, 0, "s", "FIELDS", 1, "f", "VALUES", "") for n in range(300)],
        [("TDROP", *[b"s" * 1000 + b"%d" % n for n in range(300)])],
    ),
    "fences": (
        [call for n in range(300) for call in (
            ("TSTAGE", "stage", 0, "s", "FIELDS", 1, "f", "VALUES", ""),
            ("TPUBLISH", b"f" * 1000 + b"%d" % n, 1, "CHECK", "c" * 64, "stage"),
        )],
        [("FLUSHALL",)],
    ),
    "names of groups": (
        [("TREAD", "s", 0, 0, "GROUP", b"g" * 4000 + b"%d" % n, 0) for n in range(100)], [("DEL", "s")]
    ),
    "names of consumers": (
        [
            ("XGROUP", "CREATE", "s", "g", 0, "MKSTREAM"),
            *[("XGROUP", "CREATECONSUMER", "s", "g", b"c" * 4000 + b"%d" % n) for n in range(100)],
        ],
        [("DEL", "s")],
    ),
    "producers": ([("XADD", "s", "IDMP", name, "1", "*", "f", "v") for name in names(4)], [("DEL", "s")]),
    "their IDs": ([("XADD", "s", "IDMP", "p", name, "*", "f", "v") for name in names(4)], [("DEL", "s")]),
    "keys of dead letters": (
        [
            ("TAPPEND", "s", "f", "v"),
            ("TREAD", "s", 0, 10, "GROUP", "g", 0, "RETRY", 1000, 1000, "DEADLETTER", LONG * 4),
        ],
        [("DEL", "s")],
    ),
    "names of keys": ([("SET", name, "") for name in names(4)], [("DEL", *names(4))]),
    "names of keys that expire": (
        [("SET", LONG, ""), ("EXPIRE", LONG, 1000), ("SET", LONG + b"2", "", "EX", 1000)], [("DEL", LONG, LONG + b"2")]
    ),
    "users": (
        [("ACL", "SETUSER", f"u{n}", b"~" + PATTERN, b"&" + b"c" * 4000) for n in range(3)],
        [("ACL", "DELUSER", "u0", "u1", "u2")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", SHARED)
def test_what_is_everybodys(c: Raw, what: str) -> None:
    calls, end = SHARED[what]
    before = used(c)
    c.pipeline(*calls)
    grown = used(c)
    assert grown > before + 300_000
    if what != "users":
        assert c("DEBUG", "RELOAD") == b"OK"
        assert used(c) > before + 300_000
    c.pipeline(*end)
    if what == "names of stages":
        assert used(c) < before + 2_000
    else:
        assert used(c) == before


def test_writes_are_refused_when_clients_keep_too_much(hand: RunningServer, c: Raw, connect: Connect) -> None:
    limit(c, MB)
    client = connect()
    client("WATCH", *names(15))
    hand.advance(1000)
    assert c("SET", "k", "v") == OOM
    assert c("TSTAGE", "stage", 0, "s", "FIELDS", 1, "f", "VALUES", "") == OOM
    client("UNWATCH")
    hand.advance(1000)
    assert c("SET", "k", "v") == b"OK"


def test_maxmemory_counts_at_once_what_clients_keep_already(c: Raw, connect: Connect) -> None:
    connect()("WATCH", *names(15))
    limit(c, MB)
    assert c("SET", "k", "v") == OOM


@pytest.mark.parametrize("what", ["stage", "fence"])
def test_names_of_stages_and_fences_have_a_limit(c: Raw, what: str) -> None:
    for size in (1024, 1025):
        name = b"n" * size
        stage = name if what == "stage" else b"st"
        said = [c("TSTAGE", stage, 0, "s", "FIELDS", 1, "f", "VALUES", "1")]
        if what == "fence":
            said.append(c("TPUBLISH", name, 1, stage))
        if size > 1024:
            assert said[-1] == f"ERR the name of the {what} has 1025 bytes; at most 1024 are allowed"
        else:
            assert said[-1] in (1, [b"published", 1])


def test_replies_that_wait_count_what_they_pin(c: Raw, connect: Connect) -> None:
    """Values and names that a reply still has to send, after they were deleted."""
    c.pipeline(*[("SET", f"k{n}", os.urandom(MB)) for n in range(12)])
    client = connect()
    number = client("CLIENT", "ID")
    client.send("MGET", *[f"k{n}" for n in range(12)])
    while tot_mem(c, number) < 6 * MB:
        pass
    c("FLUSHALL")
    assert used(c) > 6 * MB
    assert client.read()[0] is not None
    while tot_mem(c, number) > MB:
        pass
