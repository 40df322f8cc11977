"""Keys that move to another group: their copies and records recreate them there, whatever happens meanwhile."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from storage.keyspace import copymutators, delivering, digest, expiry
from storage.keyspace.exporting import AT_ONCE, EXAMINED, KeyExport
from storage.keyspace.importing import apply
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.moving import MoveEndedError
from storage.keyspace.replay import replay
from storage.keyspace.values import String
from storage.model import records
from storage.streams.delayed import WALL, split
from storage.streams.stream import Stream
from tests.storage.keyspace.replaykit import NOW, call, counters, empty

KEYS = ["m1", "m2", "m3", "m4", "s1", "s2"]
_PENDING = re.compile(rb"\((\d+, \d+, \d+), ([1-9]\d*), (\d+),")
STAGES = ["m-a", "m-b", "s-a"]


def moves(key: bytes) -> bool:
    return key.startswith(b"m")


def content(ks: Keyspace, shift: int = 0) -> dict[bytes, Any]:
    """What keys have, except the ordinals of delayed entries."""
    found: dict[bytes, Any] = {}
    for key, value in ks.keys.items():
        if not moves(key):
            continue
        parts: list[bytes] = []
        if isinstance(value, String):
            parts.append(value.value)
        else:
            digest.add_stream(value, parts.append)
        later = []
        delayed = ks.delayed.get(key)
        if delayed is not None and len(delayed):
            for wires in delayed.entries.snapshot(delayed.entries.first_ord, delayed.entries.next_ord).entries():
                for one in map(split, wires):
                    due = one.due if one.flags & WALL else one.due + shift
                    later.append((one.token, due, one.flags, one.rest))
            assert len(later) == len(delayed)
        text = b"".join(parts)
        if shift:  # of pending messages: ID, deliveries, first, due, expire
            text = _PENDING.sub(lambda row: _later(row, shift), text)
        found[key] = text, ks.expires.get(key), sorted(later)
    fences = {name: (epoch, ks.stages.checks.get(name)) for name, epoch in ks.stages.fences.items() if moves(name)}
    staged: dict[tuple[bytes, bytes], list[bytes]] = {
        (name, piece.key): [] for name, stage in ks.stages.by_name.items() for piece in stage.pieces
        if moves(piece.key)
    }  # fmt: skip
    for name, stage in ks.stages.by_name.items():
        for piece in stage.pieces:
            if moves(piece.key):
                staged[name, piece.key] += piece.entries()
    return {**found, b"fences": fences, b"stages": staged}


def _later(row: re.Match[bytes], shift: int) -> bytes:
    before, due, expire = row[1], int(row[2]), int(row[3])
    return b"(%b, %d, %d," % (before, due + shift, expire + shift if expire else 0)


def step(chance: random.Random, ks: Keyspace, now: int) -> None:
    """Run a random command."""
    key, group, consumer = chance.choice(KEYS), chance.choice(["g", "h"]), chance.choice(["c", "d"])
    prefix = key[0]

    def run(*words: Any) -> Any:
        return call(ks, now, *words)

    ids = [entry.split(b"\r\n")[2].replace(b".", b"-") for entry in _entries(ks, key)]
    some = chance.sample(ids, min(len(ids), 2))
    name, other = chance.choice(STAGES), chance.choice(KEYS)
    choice, options = chance.randrange(24), list[Any]()
    if choice < 6:
        for _ in range(chance.randint(1, 5)):
            run("XADD", key, "*", "f", chance.randrange(100))
    elif choice == 6:
        run("XGROUP", "CREATE", key, group, "0", "MKSTREAM")
    elif choice == 7:
        run("XREADGROUP", "GROUP", group, consumer, "COUNT", chance.randint(1, 4), "STREAMS", key, ">")
    elif choice == 8 and some:
        run("XACK", key, group, *some)
    elif choice == 9:
        run("XCLAIM", key, group, consumer, 0, *(some or [b"1-0"]))
    elif choice == 10:
        run("XTRIM", key, "MAXLEN", chance.randint(0, 8))
    elif choice == 11 and some:
        run("XDEL", key, *some)
    elif choice == 12:
        run("DEL", key)
    elif choice == 13:
        run("SET", prefix + "t", chance.randrange(100), *chance.choice([[], ["PX", 30]]))
        string = ks.keys.get(f"{prefix}t".encode())
        if isinstance(string, String):
            ks.patch_string(f"{prefix}t".encode(), string, 1, b"abc")
    elif choice == 14:
        run("RENAME", key, chance.choice(KEYS))
    elif choice == 15:
        run("TDELAY", key, chance.choice(["IN", "IN", "AT"]), chance.choice([20, 500]), *chance.choice(
            [[], ["ID", f"t{chance.randrange(5)}"]]), "f", "v")  # fmt: skip
    elif choice == 16:
        run("TDELAY", key, "CANCEL", f"t{chance.randrange(5)}")
    elif choice == 17:
        run("TSTAGE", name, 60000, other, "FIELDS", 1, "f", "VALUES", *range(chance.randint(1, 8)))
    elif choice == 18:
        there = sorted(ks.stages.by_name)
        options = chance.choice([["CHECK", "c"], []])
        options += chance.choice([[name], there]) or [name]
        run("TPUBLISH", prefix + "fence", chance.randrange(1000), *options)
    elif choice == 19:
        run(chance.choice(["TDROP", "TPERSIST"]), name)
    elif choice == 20:
        run("TREAD", key, 0, 4, "GROUP", "q", 60000, "RETRY", 50, 500, *chance.choice(
            [[], ["MAXDELIVERIES", 2, "DEADLETTER", prefix + "2"]]))  # fmt: skip
    elif choice == 21:
        run("XADD", key, "IDMP", "p", f"i{chance.randrange(9)}", "*", "f", "v")
    elif choice == 22:
        run("TCFG", key, "RETAIN", "COUNT", chance.randint(1, 9), "EXACT")
        run("TCFG", key, "TIER", chance.choice(["AGE", "BYTES"]), chance.randint(0, 9))
        run("PEXPIRE", key, chance.choice([40, 5000]))
    else:
        run("XSETID", key, f"{now + 50}-0")


def _entries(ks: Keyspace, key: str) -> list[bytes]:
    value = ks.keys.get(key.encode())
    return [] if value is None or isinstance(value, String) else value.each(value.first_ord, value.next_ord)


@pytest.mark.parametrize("shift", [0, 7000, -7000])
@pytest.mark.parametrize("seed", range(8))
def test_a_copy_and_later_records_recreate_the_keys(seed: int, shift: int) -> None:
    chance = random.Random(seed)
    source, target, replica = empty(), empty(), empty()
    source.set_away(shift)
    now = NOW
    for _ in range(chance.randint(0, 80)):
        now += chance.choice([0, 1, 10])
        step(chance, source, now)
        expiry.run(source, now)
    source.take_batch()
    target.inert = lambda key: True
    copymutators.set_imports(target, b"imports")
    export = KeyExport(source, moves)
    ended = False
    busy = chance.choice([3, 10])
    for number in range(400):
        now += chance.choice([0, 1, 10])
        if number < 120:
            for _ in range(chance.randrange(busy)):
                step(chance, source, now)
        expiry.run(source, now)
        delivering.run(source, now, 10, lambda error: pytest.fail(str(error)))
        try:
            export.on_batch(source.take_batch())
            more = export.step()
        except MoveEndedError:  # dead letters in a key that does not move
            ended = True
            break
        if chance.random() < 0.3 or not more:
            apply(target, export.take(), shift)
            expiry.run(target, now)
            delivering.run(target, now, 10, lambda error: pytest.fail(str(error)))
            batch = target.take_batch()
            replay(replica, batch)
            assert replica.take_batch() == batch
        if not more and number >= 120:
            break
    if ended:
        return
    assert not more
    assert content(target) == content(source, shift)
    assert {key: count for key, count in counters(source).items() if moves(key[0])} == counters(target)
    assert target.digest() == replica.digest()
    assert not [key for key in target.keys if not moves(key)]
    assert target.imports == replica.imports == b"imports"
    export.close()


def test_the_deadlines_of_copied_groups_and_stages_are_extended() -> None:
    """Reads extend the deadline of a group, which is not logged: the copy has an earlier one."""
    source, target = empty(), empty()
    call(source, NOW, "XADD", "m1", "1-1", "f", "v")
    call(source, NOW, "TREAD", "m1", 0, 1, "GROUP", "g", 1000)
    call(source, NOW, "TSTAGE", "m-a", 1000, "m1", "FIELDS", 1, "f", "VALUES", 1)
    source.take_batch()
    target.inert = moves
    export = KeyExport(source, moves)
    while export.step():
        pass
    apply(target, export.take(), 0)
    expiry.run(target, NOW + 5000)
    stream = target.keys[b"m1"]
    assert isinstance(stream, Stream)
    assert stream.groups
    target.resume_copied(moves, NOW + 5000)
    target.inert = None
    target.unpark()
    expiry.run(target, NOW + 5500)
    assert stream.groups
    assert target.stages.by_name
    expiry.run(target, NOW + 6100)
    assert not stream.groups
    assert not target.stages.by_name


def test_a_wait_for_a_stage_examines_few_entries_at_a_time() -> None:
    ks, asked = empty(), 0

    def counted(key: bytes) -> bool:
        nonlocal asked
        asked += 1
        return moves(key)

    def stage(name: str, key: str) -> None:
        call(ks, NOW, "TSTAGE", name, 60_000, key, "FIELDS", 1, "f", "VALUES", 1)
        export.on_batch(ks.take_batch())

    for number in range(2 * AT_ONCE):
        call(ks, NOW, "TSTAGE", f"m{number}", 60_000, "m", "FIELDS", 1, "f", "VALUES", 1)
        call(ks, NOW, "TSTAGE", "m-large", 60_000, f"m{number}", "FIELDS", 1, "f", "VALUES", 1)
    ks.take_batch()
    export = KeyExport(ks, counted)
    while export.step():
        pass

    def reasons() -> list[str]:
        """Call until something else than EXAMINED is returned; return the reasons."""
        nonlocal asked
        found: list[str] = []
        while not found or found[-1] == EXAMINED:
            asked = 0
            found.append(export.held_up())
            assert asked <= 2 * AT_ONCE
        return found

    assert len(reasons()) > 4
    assert reasons() == [""]
    assert asked == 0
    for name, key in (("m1", "s1"), ("s-a", "m1"), ("m-large", "s1")):
        stage(name, key)
        assert reasons()[-1].startswith(f"the stage '{name}' has entries for slots that move and for slots that stay")
        assert len(reasons()) == 1
        assert asked == 0
        call(ks, NOW, "TDROP", name)
        export.on_batch(ks.take_batch())
        assert reasons()[-1] == ""
    stage("s-b", "s1")
    stage("m-large", "m5")
    assert reasons() == [""]


def test_flushall_ends_a_move() -> None:
    export = KeyExport(empty(), moves)
    with pytest.raises(MoveEndedError, match="FLUSHALL"):
        export.on_batch(records.flush())


def test_the_largest_record_is_known() -> None:
    """The size of one record does not count when the other group is behind."""
    ks = empty()
    for key, size in (("m1", 5), ("m2", 5000), ("m3", 50), ("s1", 90_000)):
        call(ks, NOW, "SET", key, "x" * size)
    ks.take_batch()
    export = KeyExport(ks, moves)
    while export.step():
        pass
    assert 5000 < export.largest < 5100
