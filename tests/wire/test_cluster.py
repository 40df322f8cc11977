"""``cluster-enabled yes`` on one server: CLUSTER, slots, CROSSSLOT, and what redis-server says to the same words."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.declare import TABLE, all_commands, lookup
from commands.refusals import REFUSED
from commands.session import Session
from commands.slots import (
    IN_C,
    SLOTS,
    interpreted_one_slot,
    interpreted_served_calls,
    interpreted_slot,
    interpreted_sole_key,
    interpreted_unserved,
    one_slot,
    served_calls,
    slot_of,
    sole_key,
    unserved,
)
from resp.errors import CommandError
from respserver.execution.redirects import in_slices, may_run, slot_of_call
from respserver.runtime.ownership import SlotOwnership
from tests.replication.cluster import new_port
from tests.waiting import eventually
from tests.wire.alike import Bytes
from tests.wire.rawclient import Raw
from tests.wire.test_differential_admin import transcript

SETTINGS = {"cluster_enabled": "yes"}


@pytest.fixture(scope="module")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a redis-server that has all slots."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server here to compare with")
    port, folder = new_port(), tmp_path_factory.mktemp("rediscluster")
    words = ["--port", str(port), "--cluster-enabled", "yes", "--cluster-port", str(new_port()), "--save", ""]
    process = subprocess.Popen([program, *words, "--dir", str(folder)], stdout=subprocess.DEVNULL)
    try:
        with Raw(eventually(lambda: _answers(port) and port, "redis-server to answer")) as c:
            assert c("CLUSTER", "ADDSLOTSRANGE", 0, 16383) == b"OK"
            eventually(lambda: b"cluster_state:ok" in c("CLUSTER", "INFO"), "a cluster")
        yield port
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    with suppress(OSError), Raw(port) as c:
        return bool(c("PING") == b"PONG")
    return False


SCRIPTS = {
    "slots": """
        CLUSTER KEYSLOT a{b}c
        CLUSTER KEYSLOT {}b
        CLUSTER KEYSLOT
        CLUSTER COUNTKEYSINSLOT 99999
        CLUSTER COUNTKEYSINSLOT -1
        CLUSTER COUNTKEYSINSLOT x
        CLUSTER GETKEYSINSLOT 1 -1
        CLUSTER GETKEYSINSLOT 20000 1
        CLUSTER GETKEYSINSLOT 1 x
        SET {t}a 1
        SET {t}b 2
        CLUSTER COUNTKEYSINSLOT 15891
        CLUSTER GETKEYSINSLOT 15891 0
        DEL {t}a {t}b
        CLUSTER COUNTKEYSINSLOT 15891
    """,
    "nodes": """
        CLUSTER LINKS
        CLUSTER REPLICAS abc
        CLUSTER SLAVES abc
        CLUSTER COUNT-FAILURE-REPORTS abc
        CLUSTER NOPE
        CLUSTER
        CLUSTER SLOTS x
        READONLY
        READWRITE
        ASKING
        SELECT 0
        SELECT 1
        SWAPDB 0 1
        MOVE a 1
    """,
    "crossslot": """
        MGET a b
        MSET a 1 b 2
        MSET {a}a 1 {a}b 2
        MGET {a}a {a}b
        DEL {a}a {a}b
        EXISTS a b
        RENAME a b
        XREAD STREAMS a b 0 0
        XREAD COUNT 1
        XREADGROUP GROUP g c STREAMS a b > >
        WATCH a b
        SSUBSCRIBE a b
        SUNSUBSCRIBE
        SPUBLISH a x
        MULTI
        SET a 1
        SET b 1
        EXEC
        EXEC
        MULTI
        MGET a b
        EXEC
        MULTI
        SET {a}x 1
        GET {a}x
        DEL {a}x
        EXEC
        MULTI
        EXEC
        EVAL nothing 2 a b
    """,
}


@pytest.mark.parametrize("proto", [2, 3])
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_same_bytes_as_redis(name: str, proto: int, emptied: Any, redis_cluster: int) -> None:
    script = [line.split() for line in SCRIPTS[name].strip().splitlines()]
    ours, theirs = (transcript(port, proto, script) for port in (emptied.port, redis_cluster))
    assert ours.split(b"\r\n") == theirs.split(b"\r\n")


@pytest.mark.parametrize("proto", [2, 3])
def test_the_members_have_the_form_that_redis_gives_them(proto: int, emptied: Any, redis_cluster: int) -> None:
    script = [["CLUSTER", word] for word in ("SLOTS", "SHARDS", "NODES", "INFO", "MYID")]
    said = []
    for port in (emptied.port, redis_cluster):
        with Raw(port, proto) as raw:
            said.append([_form(raw(*words), port) for words in script])
    ours, theirs = said
    assert ours[0] == theirs[0]
    assert ours[2:3] == theirs[2:3]
    assert ours[4:] == theirs[4:]
    assert [line.split(":")[0] for line in ours[3].split("\r\n") if "links" not in line] == [
        line.split(":")[0] for line in theirs[3].split("\r\n") if "links" not in line and "_ping_" not in line
    ]
    shards = [re.sub(r"(replication-offset', )\d+", r"\1N", str(each[1])) for each in said]
    assert shards[0] == shards[1]


@pytest.mark.parametrize("proto", [2, 3])
@pytest.mark.parametrize("preferred", ["ip", "hostname"])
def test_announced_names_as_in_redis(proto: int, preferred: str, emptied: Any, redis_cluster: int) -> None:
    names = ["cluster-announce-ip", "cluster-announce-hostname", "cluster-preferred-endpoint-type"]
    script = [["CLUSTER", word] for word in ("SLOTS", "SHARDS", "NODES")]
    said = []
    for port in (emptied.port, redis_cluster):
        with Raw(port, proto) as raw:
            for values in (["10.1.2.3", "a.example", preferred], ["10.1.2.3", "", "ip"], ["", "", "ip"]):
                pairs = [word for pair in zip(names, values, strict=True) for word in pair]
                assert raw("CONFIG", "SET", *pairs) == b"OK"
                if values[0]:
                    said.append([_form(raw(*words), port) for words in script])
    assert str(said[0]).count("a.example") == {"ip": 3, "hostname": 4}[preferred]
    for ours, theirs in ((said[0], said[2]), (said[1], said[3])):
        for mine, its in zip(ours, theirs, strict=True):
            assert [re.sub(r"(replication-offset', )\d+", r"\1N", str(each)) for each in (mine,)] == [
                re.sub(r"(replication-offset', )\d+", r"\1N", str(its))
            ]


def test_what_only_a_bus_could_do_is_refused_with_a_remedy(emptied: Any, newer_redis: Any) -> None:
    with Raw(emptied.port) as c, Raw(newer_redis.port) as real:
        ((_, *_, subcommands),) = real("COMMAND", "INFO", "cluster")
        known = set(TABLE[b"cluster"].subcommands)
        for row in subcommands:
            name = row[0].decode().partition("|")[2]
            if name.encode() not in known:
                for words in ([name], [name, "1", "x"]):
                    assert c("CLUSTER", *words).startswith(f"ERR CLUSTER {name.upper()} is not supported: "), name
        assert c("CLUSTER", "Failover") == (
            "ERR CLUSTER FAILOVER is not supported: send FAILOVER to the leader, or run tidelog group failover"
        )
        assert c("CLUSTER", "NOPE") == "ERR unknown subcommand 'NOPE'. Try CLUSTER HELP."
        assert [c("MULTI"), c("CLUSTER", "MEET")[:3], c("EXEC")[:9]] == [b"OK", "ERR", "EXECABORT"]
    assert not {name.partition("|")[2].encode() for name in REFUSED} & known


@pytest.mark.parametrize("proto", [2, 3])
def test_tips_and_sets_of_command_info_as_in_redis(proto: int, emptied: Any, newer_redis: Any) -> None:
    """Cluster clients decide by the tips on which servers they run a command, and how they join the replies."""

    def tips(row: list[Any], found: dict[bytes, Any]) -> dict[bytes, Any]:
        found[row[0]] = sorted(row[7])
        for sub in row[9]:
            tips(sub, found)
        return found

    ours, theirs = dict[bytes, Any](), dict[bytes, Any]()
    for port, found in ((emptied.port, ours), (newer_redis.port, theirs)):
        with Raw(port, proto) as raw:
            for row in raw("COMMAND"):
                tips(row, found)
    assert ours[b"mget"] == [b"request_policy:multi_shard"]
    shared = set(ours) & set(theirs)
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}
    forms = []
    for port in (emptied.port, newer_redis.port):
        with closing(Bytes(port, proto)) as wire:
            raw_bytes = [wire.ask("COMMAND", "INFO", name) for name in ("dbsize", "get", "mget", "xreadgroup")]
        forms.append([line for line in b"".join(raw_bytes).split(b"\r\n") if line[:1] in b"*~%"])
    assert forms[0] == forms[1]


def _form(value: Any, port: int) -> Any:
    """A reply with everything replaced that differs from server to server: IDs, ports, the missing host of redis."""
    if isinstance(value, bytes):
        text = re.sub(r"[0-9a-f]{40}", "ID", value.decode()).replace("127.0.0.1", "")
        return re.sub(rf"{port}(@\d+)?", "PORT", text)
    if isinstance(value, dict):
        return {_form(key, port): _form(item, port) for key, item in value.items() if key != b"replication-offset"}
    if isinstance(value, list):
        return [_form(item, port) for item in value]
    return "PORT" if value == port else value


def test_without_cluster_enabled_the_commands_say_so(hand: Any) -> None:
    with Raw(hand.port) as c:
        for words in (["SLOTS"], ["NODES"], ["HELP"], ["KEYSLOT", "k"], ["MYID"], ["INFO"], ["COUNTKEYSINSLOT", "1"]):
            assert str(c("CLUSTER", *words)) == "ERR This instance has cluster support disabled"
        for word in ("READONLY", "READWRITE", "ASKING"):
            assert str(c(word)) == "ERR This instance has cluster support disabled"
        assert c("MGET", "a", "b") == [None, None]
        assert b"cluster_enabled:0" in c("INFO", "cluster")
    assert not list(Path(hand.server.config.dir).glob("node"))


def test_clients_are_told_that_it_is_a_cluster(emptied: Any) -> None:
    with Raw(emptied.port) as c:
        assert b"cluster_enabled:1" in c("INFO", "cluster")
        assert b"redis_mode:cluster" in c("INFO", "server")
        hello = c("HELLO")
        assert hello[hello.index(b"mode") + 1] == b"cluster"
        assert b" flags=N " in c("CLIENT", "INFO")
        c("READONLY")
        assert b" flags=r " in c("CLIENT", "INFO")
        c("RESET")
        assert b" flags=N " in c("CLIENT", "INFO")
        assert re.fullmatch(rb"[0-9a-f]{40}", c("CLUSTER", "MYSHARDID"))
        assert c("CLUSTER", "HELP")[0].startswith(b"CLUSTER <subcommand>")


def test_a_pipeline_of_several_slots_runs_and_its_crossing_calls_fail(emptied: Any) -> None:
    """The calls of a pipeline are checked one by one, in batches and groups, too."""
    with Raw(emptied.port) as c:
        sets = [("SET", f"k{n}", "v") for n in range(50)]
        answers = c.pipeline(*sets, *[("MGET", "k1", "k2")] * 3, *[("GET", "k1")] * 3)
        mixed = c.pipeline(*[("MGET", "k1", "k1"), ("MGET", "k1", "k2"), ("MGET", "k2", "k2")] * 3)
    assert [isinstance(answer, list) for answer in mixed] == [True, False, True] * 3
    assert answers[:50] == [b"OK"] * 50
    assert {str(answer) for answer in answers[50:53]} == {"CROSSSLOT Keys in request don't hash to the same slot"}
    assert answers[53:] == [b"v"] * 3


def test_a_cluster_of_many_keys_counts_those_of_a_slot(emptied: Any) -> None:
    with Raw(emptied.port) as c:
        wanted = slot_of(b"key:7")
        for start in range(0, 30_000, 10_000):
            c.pipeline(*[("SET", f"key:{n}", "v") for n in range(start, start + 10_000)])
        expected = {b"key:%d" % n for n in range(30_000) if slot_of(b"key:%d" % n) == wanted}
        assert c("CLUSTER", "COUNTKEYSINSLOT", wanted) == len(expected)
        assert set(c("CLUSTER", "GETKEYSINSLOT", wanted, 1000)) == expected
        assert len(c("CLUSTER", "GETKEYSINSLOT", wanted, 1)) == 1


def test_the_keys_of_long_calls_are_compared(emptied: Any) -> None:
    """In slices; the commands run then, in slices or not, and their errors are the same."""
    crossing = "CROSSSLOT Keys in request don't hash to the same slot"
    many = [f"{{t}}{n}" for n in range(12_000)]
    with Raw(emptied.port) as c:
        assert c("MSET", *[word for name in many for word in (name, "v")]) == b"OK"
        assert c("MGET", *many) == [b"v"] * len(many)
        assert c("EXISTS", *many) == len(many)
        for command in ("MGET", "DEL", "UNLINK", "EXISTS", "TOUCH"):
            assert c(command, *many, "elsewhere") == crossing
            assert c(command, "elsewhere", *many) == crossing
        assert c("MSETNX", *[word for name in [*many, "elsewhere"] for word in (name, "w")]) == crossing
        assert c("MSETNX", *[word for name in many for word in (name, "w")]) == 0
        assert c("MSET", *many, "{t}odd") == "ERR wrong number of arguments for 'mset' command"
        assert [c("MULTI"), c("DEL", *many, "elsewhere"), c("EXEC")[:9]] == [b"OK", crossing, "EXECABORT"]
        assert [c("MULTI"), c("EXISTS", *many), c("EXEC")] == [b"OK", b"QUEUED", [len(many)]]
        assert c.pipeline(("DEL", *many), ("DBSIZE",), ("MGET", *many)) == [len(many), 0, [None] * len(many)]
        c("CLIENT", "MULTISLOT", "ON")
        assert c("EXISTS", *many, "elsewhere") == 0


def test_calls_with_many_keys_can_block(emptied: Any) -> None:
    """A command in slices can't. With 5000 streams, an XREAD has more words than other commands that run in slices."""
    few, many = [f"{{t}}{n}" for n in range(5000)], [f"{{t}}{n}" for n in range(5000, 15_000)]
    with Raw(emptied.port) as c, Raw(emptied.port) as other:
        c.pipeline(*[("XGROUP", "CREATE", name, "g", "$", "MKSTREAM") for name in few])
        for words, key in [
            (["XREADGROUP", "GROUP", "g", "c", "BLOCK", "9000", "STREAMS", *few, *[">"] * len(few)], few[8]),
            (["TWAIT", "9000", "GROUP", "g", *few], few[10]),
            (["XREAD", "BLOCK", "9000", "STREAMS", *few, *["$"] * len(few)], few[7]),
            (["TWAIT", "9000", *[word for name in many for word in (name, "0")]], many[123]),
        ]:
            c.send(*words)
            eventually(lambda: b"blocked_clients:1" in other("INFO", "clients"), "a blocked client")
            other("XADD", key, "*", "field", "value")
            assert key in str(c.read())
            crossing = ["elsewhere" if word in ("{t}123", many[123]) else word for word in words]
            assert c(*crossing) == "CROSSSLOT Keys in request don't hash to the same slot"
        options = ["COUNT", "1"] * 10_100
        refused = "ERR XREAD takes at most 20099 arguments in one call, not 20205"
        assert c("XREAD", *options, "BLOCK", "9000", "STREAMS", "{t}a", "$") == refused


@pytest.mark.interpreted
def test_a_long_call_is_compared_in_many_steps() -> None:
    """Other clients are served in between."""
    argv = [b"EXISTS", *[b"{t}%d" % n for n in range(100_000)], b"elsewhere"]
    slices = in_slices(lookup(argv), argv)
    for _ in range(50):
        assert slices.step(None) is None  # type: ignore[arg-type]
    with pytest.raises(CommandError, match="CROSSSLOT"):
        slices.step(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "slots"),
    [
        (["XREAD", "COUNT", "1", "STREAMS", "a", "b", "0", "0"], 2),
        (["XREADGROUP", "GROUP", "STREAMS", "c", "STREAMS", "a", "{a}b", ">", ">"], 1),
        (["TREAD", "a", "0", "1", "GROUP", "DEADLETTER", "0", "RETRY", "1", "2", "DEADLETTER", "b"], 2),
        (["TREAD", "a", "0", "1", "GROUP", "DEADLETTER", "0", "RETRY", "1", "2", "DEADLETTER", "{a}"], 1),
        (["TWAIT", "1", "a", "0", "b", "0"], 2),
        (["TWAIT", "1", "GROUP", "g", "a", "{a}b"], 1),
        (["TSTAGE", "s", "1000", "a", "FIELDS", "1", "f", "VALUES", "v"], 2),
        (["TPUBLISH", "f", "1", "CHECK", "f", "s"], 2),
        (["TPUBLISH", "{s}f", "1", "CHECK", "f", "s"], 1),
        (["TDELAY", "a", "IN", "10", "ID", "b", "f", "v"], 1),
        (["TCFG", "a", "RETAIN", "COUNT", "1"], 1),
        (["EVALSHA", "0" * 40, "2", "a", "b"], 2),
        (["EVALSHA", "0" * 40, "1", "a", "b"], 1),
        (["RENAME", "a", "b"], 2),
        (["OBJECT", "ENCODING", "a"], 1),
        (["XGROUP", "CREATE", "a", "g", "0"], 1),
        (["MSETEX", "2", "a", "1", "b", "2", "EX", "9"], 2),
        (["MSETEX", "1", "a", "1", "EX", "9"], 1),
        (["SSUBSCRIBE", "a", "b"], 2),
        (["XREAD", "STREAMS", "a", "0"], 1),
        (["DBSIZE"], 0),
        (["KEYS", "a*b"], 0),
        (["PUBLISH", "a", "b"], 0),
        (["SUBSCRIBE", "a", "b"], 0),
        (["SCAN", "0", "MATCH", "x"], 0),
    ],
)
def test_slots_of_calls(words: list[str], slots: int) -> None:
    """They follow from the declarations of the commands."""
    argv = [word.encode() for word in words]
    command = lookup(argv)
    assert may_run(Session(1, "", "", 0), SlotOwnership(), command, argv) is (slots < 2)
    if slots == 2:
        with pytest.raises(CommandError, match="CROSSSLOT"):
            slot_of_call(command, argv, -1, False)
    else:
        assert slot_of_call(command, argv, -1, False) == (-1 if slots == 0 else slot_of(argv[command.keys(argv)[0][0]]))


@pytest.mark.parametrize(
    ("keys", "same"),
    [
        ([b"a", b"a"], True), ([b"a", b"b"], False), ([b"{a}", b"a"], True), ([b"{a}1", b"{a}2", b"x{a}"], True),
        ([b"x{a}1", b"x{a}2{b}"], True), ([b"{}a", b"{}b"], False), ([b"{}a", b"{}a"], True), ([b"{a", b"{a}"], False),
        ([b"foo{}{bar}", b"foo{}{bar}x"], False), ([b"{a}{b}", b"{b}"], False), ([b"a}{", b"a}{x}"], False),
        ([b"", b""], True), ([b"x{a}1", b"x{a"], False),
    ],
)  # fmt: skip
def test_common_slots(keys: list[bytes], same: bool) -> None:
    expected = slot_of(keys[0]) if same else -1
    assert one_slot(keys, 0, 1) == interpreted_one_slot(keys) == expected
    spaced = [b"MSET", *[word for key in keys for word in (key, b"other")]]
    assert one_slot(spaced, 1, 2) == expected
    assert same == (len({slot_of(key) for key in keys}) == 1)


@pytest.mark.parametrize(
    ("words", "at"),
    [
        ("XREAD STREAMS a 0", 2), ("XREAD COUNT 1 streams a 0", 4), ("XREADGROUP GROUP g c STREAMS a >", 5),
        ("XREAD STREAMS a b 0 0", 0), ("XREAD STREAMS a STREAMS 0 0", 0), ("XREAD STREAMS STREAMS 0", 0),
        ("XREADGROUP GROUP STREAMS c STREAMS a >", 0), ("STREAMS a 0", 0), ("XREAD STREAMZ a 0", 0), ("XREAD a", 0),
    ],
)  # fmt: skip
def test_the_only_key_of_a_read(words: str, at: int) -> None:
    argv = words.encode().split()
    assert sole_key(argv, b"STREAMS") == interpreted_sole_key(argv, b"STREAMS") == at


@given(
    st.lists(st.binary(max_size=4) | st.sampled_from([b"{a}1", b"{a}2"]), max_size=6), st.integers(0, 3),
    st.integers(0, 2), st.sets(st.integers(0, 16383), max_size=3), st.booleans(),
)  # fmt: skip
def test_served_slots_in_c_and_in_python(
    words: list[bytes], first: int, step: int, others: set[int], most: bool
) -> None:
    exceptions = {*others, slot_of(b"{a}1"), *map(slot_of, words[:2])}
    served = bytes((slot in exceptions) != most for slot in range(SLOTS))
    keys = words[first::step] if step else words[first : first + 1]
    assert unserved(served, words, first, step) == interpreted_unserved(served, keys)
    assert interpreted_unserved(served, keys) == next((slot_of(key) for key in keys if not served[slot_of(key)]), -1)
    calls = [[b"GET", word] for word in words] + [[b"PING"]]
    count = served_calls(served, calls, first, 9, 1)
    assert count == interpreted_served_calls(served, calls, first, 9, 1)
    if first <= len(words):
        assert count == first + next(
            (at for at, word in enumerate(words[first:]) if not served[slot_of(word)]), len(words) - first
        )


@pytest.mark.parametrize(
    ("key", "slot"),
    [(b"123456789", 12739), (b"", 0), (b"foo{bar}", 5061), (b"bar", 5061), (b"{}bar", slot_of(b"{}bar"))],
)
def test_slots_as_in_the_specification(key: bytes, slot: int) -> None:
    assert slot_of(key) == slot


def _crc16(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1
    return crc & 0xFFFF


@given(st.lists(st.text("a{}", max_size=6).map(str.encode), max_size=4), st.integers(0, 3), st.integers(1, 3))
def test_slots_in_c_and_interpreted(words: list[bytes], first: int, step: int) -> None:
    assert [slot_of(word) for word in words] == [interpreted_slot(word) for word in words]
    assert one_slot(words, first, step) == interpreted_one_slot(words[first::step])


@pytest.mark.skipif(not IN_C, reason="no C compiler here")
def test_wrong_arguments_of_the_functions_in_c() -> None:
    from commands import _slots

    wrong: Any
    for wrong in ("a", bytearray(b"a"), None, 1):
        with pytest.raises(TypeError):
            _slots.slot_of(wrong)
        with pytest.raises(TypeError):
            _slots.one_slot([b"a", wrong], 0, 1)
    for wrong in ((), ([b"a"], 0), ((b"a",), 0, 1), ([b"a"], "0", 1), ([b"a"], 0, None)):
        with pytest.raises(TypeError):
            _slots.one_slot(*wrong)
    for wrong in ((-1, 1), (0, 0), (0, -1)):
        with pytest.raises(ValueError, match="at least"):
            _slots.one_slot([b"a"], *wrong)
    with pytest.raises(OverflowError):
        _slots.one_slot([b"a"], 1 << 70, 1)
    assert _slots.one_slot([b"a", b"b"], 0, 1 << 62) == slot_of(b"a")
    assert _slots.one_slot([b"a"], 1 << 62, 1 << 62) == -1


@given(st.binary(max_size=30).map(lambda raw: raw.replace(b"a", b"{").replace(b"b", b"}")))
def test_slots_of_any_key(key: bytes) -> None:
    found = re.search(rb"\A[^{]*\{([^}]+)\}", key, re.DOTALL)
    assert slot_of(key) == _crc16(found[1] if found else key) % 16384


def test_the_keys_of_each_call_of_a_batch_count(emptied: Any) -> None:
    """Reads of one stream that arrive together may have different dead-letter streams."""
    read = ("TREAD", "a", "0", "1", "GROUP", "g", "0", "RETRY", "100", "9999", "MAXDELIVERIES", "2", "DEADLETTER")
    with Raw(emptied.port) as c:
        c("TAPPEND", "a", "f", "v")
        answers = c.pipeline((*read, "{a}b"), (*read, "other"), (*read, "{a}c"))
    assert [str(answer).split()[0] for answer in answers if not isinstance(answer, list)] == ["CROSSSLOT"]
    assert isinstance(answers[0], list)
    assert isinstance(answers[2], list)


def test_every_command_with_several_keys_is_known_to_have_them() -> None:
    """The dispatcher does not look at the keys of the others."""
    for command in all_commands():
        if not command.several_keys:
            words = [command.name.encode()] * max(abs(command.arity), 1) + [b"x"] * 50
            assert len({argv for argv in [tuple(at for at, _ in command.keys(words, real=False))] if argv}) <= 1
            assert len(command.keys(words, real=False)) <= 1, command.name
