"""Whatever is done to a stream, between copies too: the target becomes what the source is."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tidelog.moving.movekit import Peer, raw, state
from tests.tidelog.moving.test_follow import Quiet
from tidelog.moving.move import Plan, move
from tidelog.testing import Server

Program = list[tuple[Any, ...]]
KEYS = st.sampled_from(["s", "t"])
GROUPS = st.sampled_from(["g", "h"])
NAMES = st.sampled_from(["ann", "bob", ""])
IDS = st.integers(1, 40).map(lambda n: f"{n}-0")
MOVE = ("MOVE",)
COMMAND = st.one_of(
    st.tuples(st.just("XADD"), KEYS, st.just("*"), st.just("a"), st.integers(0, 9)),
    st.tuples(st.just("XADD"), KEYS, st.just("MAXLEN"), st.integers(0, 5), st.just("*"), st.just("a"), st.just("b")),
    st.tuples(st.just("XADD"), KEYS, IDS, st.just("a"), st.just("b"), st.just("a"), st.just("c")),
    st.tuples(st.just("XDEL"), KEYS, IDS, IDS),
    st.tuples(st.just("XTRIM"), KEYS, st.just("MINID"), IDS),
    st.tuples(st.just("XSETID"), KEYS, IDS),
    st.tuples(st.just("XGROUP"), st.just("CREATE"), KEYS, GROUPS, st.one_of(IDS, st.just("0")), st.just("MKSTREAM")),
    st.tuples(st.just("XGROUP"), st.just("SETID"), KEYS, GROUPS, IDS),
    st.tuples(st.just("XGROUP"), st.just("DESTROY"), KEYS, GROUPS),
    st.tuples(st.just("XGROUP"), st.just("CREATECONSUMER"), KEYS, GROUPS, NAMES),
    st.tuples(st.just("XGROUP"), st.just("DELCONSUMER"), KEYS, GROUPS, NAMES),
    st.tuples(st.just("READ"), KEYS, GROUPS, NAMES, st.integers(1, 5)),
    st.tuples(st.just("XACK"), KEYS, GROUPS, IDS, IDS),
    st.tuples(st.just("XCLAIM"), KEYS, GROUPS, NAMES, st.just(0), IDS, IDS),
    st.tuples(st.just("XCLAIM"), KEYS, GROUPS, NAMES, st.just(0), IDS, IDS, st.just("FORCE")),
    st.tuples(st.just("PEXPIREAT"), KEYS, st.integers(4_000_000_000_000, 4_000_000_000_009)),
    st.tuples(st.just("DEL"), KEYS),
    st.just(MOVE),
)
PROGRAMS = st.lists(COMMAND, min_size=3, max_size=40)


def run(client: Any, command: tuple[Any, ...], clock: list[int]) -> None:
    """Carry it out; what the server refuses changes nothing."""
    if command[0] == "READ":
        _, key, group, name, count = command
        command = ("XREADGROUP", "GROUP", group, name, "COUNT", count, "STREAMS", key, ">")
    if "*" in command:
        clock[0] += 1
        command = tuple(f"{clock[0]}-0" if word == "*" else word for word in command)
    try:
        raw(client, *command)
    except redis.ResponseError:
        pass


def kept(client: Any, key: str) -> dict[str, Any]:
    """The state of a stream without pending messages whose entries are gone."""
    if not client.exists(key):
        return {}
    found = state(client, key)
    there = {at for at, _ in raw(client, "XRANGE", key, "-", "+")}
    for group in found["groups"].values():
        for at, owner, _ in group["pending"]:
            if at not in there:
                group["consumers"][owner] -= 1
                group["pel-count"] -= 1
        group["pending"] = [row for row in group["pending"] if row[0] in there]
    return found


def moved_each_time(source: Any, target: Any, urls: tuple[str, str], program: Program) -> None:
    source.flushall()
    target.flushall()
    clock = [20]
    for command in [*program, MOVE]:
        if command != MOVE:
            run(source, command, clock)
            continue
        for key in ("s", "t"):  # a copy takes a stream that was made anew for another one; following does not
            if not source.exists(key) or _behind(source, target, key):
                target.delete(key)
        try:
            outcome = move(Plan(*urls, resume=True), Quiet(), lambda: False)
        except Exception as error:
            error.add_note(repr(program))
            raise
        assert outcome.verdict == "same", outcome.to_dict()
        for key in ("s", "t"):
            assert kept(target, key) == kept(source, key)


def _behind(source: Any, target: Any, key: str) -> bool:
    """Whether the target's stream is no beginning of the source's: that was made anew, or its last ID was set back."""
    if not target.exists(key):
        return False
    mine, its = source.xinfo_stream(key), target.xinfo_stream(key)
    there, here = dict(target.xrange(key)), dict(source.xrange(key))
    wrong = any(fields != here.get(at, fields) for at, fields in there.items())
    lacking = [at for at in here if at not in there and order(at) <= order(its["last-generated-id"])]
    smaller = mine["entries-added"] < its["entries-added"] or bool(lacking) or wrong
    deleted = its["max-deleted-entry-id"] != b"0-0" and mine["max-deleted-entry-id"] == b"0-0"
    return smaller or deleted or order(mine["last-generated-id"]) < order(its["last-generated-id"])


def order(at: bytes) -> tuple[int, int]:
    ms, _, seq = at.partition(b"-")
    return int(ms), int(seq)


SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@SETTINGS
@given(program=PROGRAMS)
def test_redis_to_redis(source: Peer, target: Peer, program: Program) -> None:
    moved_each_time(source.client, target.client, (source.url, target.url), program)


@pytest.mark.parametrize("back", [False, True])
@settings(SETTINGS, max_examples=25)
@given(program=PROGRAMS)
def test_with_tidelog(source: Peer, tidelog_server: Server, back: bool, program: Program) -> None:
    client = redis.Redis(port=tidelog_server.port, protocol=2)
    try:
        if back:
            moved_each_time(client, source.client, (tidelog_server.url, source.url), program)
        else:
            moved_each_time(source.client, client, (source.url, tidelog_server.url), program)
    finally:
        client.close()
