"""Declarations: what follows from an argument tree, and whether it agrees with Redis where Redis has the command."""

from __future__ import annotations

import pytest

from commands import declare
from commands.context import Context, Reply
from commands.declare import (
    Arg,
    Command,
    Description,
    arg,
    block,
    command,
    docs_tree,
    find_keys,
    info_row,
    key,
    lookup,
    oneof,
    opt,
    repeat,
    syntax,
    token,
)
from commands.registry import TABLE, all_commands
from resp.errors import CommandError


def handler(ctx: Context, argv: list[bytes]) -> Reply:
    """Do it."""
    return b""


def make(*args: Arg, name: str = "demo", flags: str = "", group: str = "generic") -> Command:
    return Command(name, handler, args, frozenset(flags.split()), Description(group, "0.1.0", "O(1)"), None, ())


# -- arity -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("args", "arity"),
    [
        ((), 1),
        ((key("RO"),), 2),
        ((key("RO"), arg("n", "integer", token="COUNT")), 4),
        ((key("RO"), opt(arg("x"))), -2),
        ((repeat(key("RO")),), -2),
        ((opt(repeat(key("RO"))),), -1),
        ((key("RO"), repeat(block("data", arg("f"), arg("v")))), -4),
        ((oneof("how", token("A"), token("B")),), 2),
        ((oneof("how", token("A"), arg("x", token="B")),), -2),
        ((block("b", arg("x"), opt(arg("y"))),), -2),
        ((oneof("how", token("A"), token("B"), token="TYPE"),), 3),
    ],
)
def test_arity_follows_from_the_tree(args: tuple[Arg, ...], arity: int) -> None:
    assert make(*args).arity == arity
    assert make(*args, name="demo|sub").arity == (arity + 1 if arity > 0 else arity - 1)


# What redis-server 7.0 answers to COMMAND INFO: arity, first key, last key, step.
REDIS = {
    "del": (-2, 1, -1, 1), "unlink": (-2, 1, -1, 1), "exists": (-2, 1, -1, 1), "type": (2, 1, 1, 1),
    "keys": (2, 0, 0, 0), "scan": (-2, 0, 0, 0), "randomkey": (1, 0, 0, 0), "touch": (-2, 1, -1, 1),
    "expire": (-3, 1, 1, 1), "pexpire": (-3, 1, 1, 1), "expireat": (-3, 1, 1, 1), "pexpireat": (-3, 1, 1, 1),
    "expiretime": (2, 1, 1, 1), "pexpiretime": (2, 1, 1, 1), "ttl": (2, 1, 1, 1), "pttl": (2, 1, 1, 1),
    "persist": (2, 1, 1, 1), "object": (-2, 0, 0, 0), "object|encoding": (3, 2, 2, 1), "object|help": (2, 0, 0, 0),
    "set": (-3, 1, 1, 1), "get": (2, 1, 1, 1), "getdel": (2, 1, 1, 1), "getex": (-2, 1, 1, 1), "mget": (-2, 1, -1, 1),
    "mset": (-3, 1, -1, 2), "incr": (2, 1, 1, 1), "decr": (2, 1, 1, 1), "incrby": (3, 1, 1, 1),
    "decrby": (3, 1, 1, 1), "strlen": (2, 1, 1, 1), "setnx": (3, 1, 1, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", REDIS)
def test_arity_and_key_positions_agree_with_redis(name: str) -> None:
    found = declare.find(name.encode().split(b"|"))
    assert found is not None
    assert (found.arity, found.first, found.last, found.step) == REDIS[name]


# -- keys --------------------------------------------------------------------------------------------------------------
def test_keys_are_found_in_every_possible_place() -> None:
    pairs = make(repeat(block("data", key("OW"), arg("v"))))
    assert [name for name, _ in find_keys(pairs, [b"demo", b"a", b"1", b"b", b"2"])] == [b"a", b"b"]
    two = make(key("RO", "source"), key("OW", "target"))
    assert find_keys(two, [b"demo", b"a", b"b"]) == [(b"a", ("RO",)), (b"b", ("OW",))]
    assert (two.first, two.last, two.step) == (1, 2, 1)
    moved = make(key("RW"), opt(arg("n", token="COUNT")), opt(key("OW INSERT", "to", token="STORE")))
    assert "movablekeys" in moved.flags
    argv = [b"demo", b"a", b"count", b"5", b"store", b"b"]
    assert find_keys(moved, argv) == [(b"a", ("RW",)), (b"b", ("OW", "INSERT"))]
    assert find_keys(moved, argv[:4]) == [(b"a", ("RW",))]
    assert find_keys(make(arg("x")), [b"demo", b"x"]) == []
    apart = make(key("RW", "one"), arg("x"), key("RW", "two"))
    assert (apart.first, apart.last, apart.step) == (1, 3, 2)
    assert find_keys(apart, [b"demo", b"a", b"x", b"b"]) == [(b"a", ("RW",)), (b"b", ("RW",))]


def test_keys_after_an_option() -> None:
    made = make(key("RW", "first"), arg("n"), opt(arg("sum", token="CHECK")), key("RM DELETE", "more", multiple=True))
    assert (made.arity, made.first, made.last, made.step) == (-4, 1, 1, 1)
    assert "movablekeys" in made.flags
    for words, found in (
        ((b"f", b"1", b"a"), [b"f", b"a"]),
        ((b"f", b"1", b"a", b"check", b"b"), [b"f", b"a", b"check", b"b"]),
        ((b"f", b"1", b"check", b"sum", b"a", b"b"), [b"f", b"a", b"b"]),
        ((b"f", b"1", b"CHECK", b"sum"), [b"f"]),
        ((b"f", b"1", b"CHECK"), [b"f"]),
    ):
        assert [name for name, _ in find_keys(made, [b"demo", *words])] == found
    assert info_row(made)[8][1] == {  # type: ignore[index]
        "flags": {"RM", "delete", "incomplete"}, "begin_search": {"type": "unknown", "spec": {}},
        "find_keys": {"type": "unknown", "spec": {}},
    }  # fmt: skip


def test_counted_keys() -> None:
    pairs = make(arg("numkeys", "integer"), repeat(block("data", key("OW"), arg("v"))), opt(token("NX")))
    assert (pairs.arity, pairs.first, pairs.last, pairs.step) == (-4, 0, 0, 0)
    assert "movablekeys" in pairs.flags
    argv = [b"demo", b"2", b"a", b"1", b"b", b"2", b"NX"]
    assert [name for name, _ in find_keys(pairs, argv)] == [b"a", b"b"]
    names = make(arg("script"), arg("numkeys", "integer"), opt(key("RW", multiple=True)), opt(arg("x", multiple=True)))
    for count, found in ((b"0", []), (b"1", [b"a"]), (b"2", [b"a", b"b"]), (b"9", [b"a", b"b", b"c"])):
        assert [name for name, _ in find_keys(names, [b"demo", b"s", count, b"a", b"b", b"c"])] == found
    for count in (b"-1", b"x", b"", b"9" * 10):
        assert find_keys(names, [b"demo", b"s", count, b"a"]) == []
    assert info_row(names)[8] == ({
        "flags": {"RW"}, "begin_search": {"type": "index", "spec": {"index": 2}},
        "find_keys": {"type": "keynum", "spec": {"keynumidx": 0, "firstkey": 1, "keystep": 1}},
    },)  # fmt: skip


def test_names_that_are_no_keys() -> None:
    shard = make(key("not_key", "shardchannel", multiple=True))
    assert (shard.arity, shard.first, shard.last, shard.step) == (-2, 1, -1, 1)
    assert find_keys(shard, [b"demo", b"a"]) == []
    assert docs_tree(shard)["arguments"] == [
        {"name": "shardchannel", "type": "string", "display_text": "shardchannel", "flags": frozenset(("multiple",))}
    ]


@pytest.mark.parametrize(
    "args",
    [
        (opt(arg("x")), key("RO")),  # no fixed place
        (repeat(key("RO")), arg("x")),  # where they end can't be told
        (repeat(block("data", key("RO"), arg("v"))), arg("x")),
    ],
)
def test_trees_whose_keys_cannot_be_found_are_refused(args: tuple[Arg, ...]) -> None:
    with pytest.raises(ValueError, match="key"):
        make(*args)


# -- implied facts -----------------------------------------------------------------------------------------------------
def test_categories_follow_from_group_and_flags() -> None:
    assert make(flags="write fast", group="string").acl_categories == ("fast", "string", "write")
    assert make(flags="readonly", group="stream").acl_categories == ("read", "slow", "stream")
    assert make(flags="admin", group="server").acl_categories == ("admin", "dangerous", "slow")


def test_mistakes_in_a_declaration_are_found_at_import() -> None:
    with pytest.raises(ValueError, match="unknown flags"):
        make(flags="quick")
    with pytest.raises(ValueError, match="unknown group"):
        make(group="misc")
    with pytest.raises(ValueError, match="not an argument type"):
        arg("x", "number")
    with pytest.raises(ValueError, match="not key flags"):
        key("readwrite")
    with pytest.raises(ValueError, match="pure-token"):
        arg("x", "pure-token")
    with pytest.raises(ValueError, match="docstring"):
        command("NODOC")(lambda ctx, argv: b"")
    with pytest.raises(ValueError, match="declared twice"):
        command("GET")(handler)
    with pytest.raises(ValueError, match="declared twice"):
        command("OBJECT|HELP")(handler)


def test_every_command_is_found_in_both_cases_and_has_a_one_line_summary() -> None:
    for found in all_commands():
        top = found.name.split("|")[0].encode()
        assert TABLE[top] is TABLE[top.upper()]
        assert found.summary.endswith(".")
        assert "\n" not in found.summary
        assert found.complexity


# -- published trees ---------------------------------------------------------------------------------------------------
def test_syntax_lines() -> None:
    assert syntax(TABLE[b"set"]) == (
        "SET key value [NX | XX | IFEQ ifeq-value | IFNE ifne-value | IFDEQ ifdeq-digest | IFDNE ifdne-digest] [GET]"
        " [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL]"
    )
    assert syntax(TABLE[b"mset"]) == "MSET key value [key value ...]"
    assert syntax(TABLE[b"object"].subcommands[b"encoding"]) == "OBJECT ENCODING key"
    some = make(oneof("how", token("A"), token("B")), opt(arg("x", token="X", multiple=True)), opt(repeat(arg("y"))))
    assert syntax(some) == "DEMO <A | B> [X x [x ...]] [y [y ...]]"


def test_docs_of_set() -> None:
    docs = docs_tree(TABLE[b"set"])
    assert {field: docs[field] for field in ("group", "complexity")} == {"group": "string", "complexity": "O(1)"}
    arguments = docs["arguments"]
    assert isinstance(arguments, list)
    assert arguments[0] == {"name": "key", "type": "key", "display_text": "key", "key_spec_index": 0}
    assert arguments[3] == {
        "name": "get", "type": "pure-token", "display_text": "get", "token": "GET", "flags": frozenset(("optional",)),
    }  # fmt: skip
    assert [child["token"] for child in arguments[4]["arguments"]] == ["EX", "PX", "EXAT", "PXAT", "KEEPTTL"]


def test_docs_of_a_container_hold_its_subcommands() -> None:
    docs = docs_tree(TABLE[b"object"])
    subcommands = docs["subcommands"]
    assert isinstance(subcommands, dict)
    assert list(subcommands) == [
        "object|encoding", "object|freq", "object|help", "object|idletime", "object|refcount",
    ]  # fmt: skip


# -- lookup -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ([b"FOO"], "ERR unknown command 'FOO', with args beginning with: "),
        ([b"foo", b"a", b"b c"], "ERR unknown command 'foo', with args beginning with: 'a' 'b c' "),
        ([b"f\0oo", b"a\0b"], "ERR unknown command 'f', with args beginning with: 'a' "),
        ([b"foo", b"x" * 200, b"y"], f"ERR unknown command 'foo', with args beginning with: '{'x' * 128}' "),
        ([b"x" * 200], f"ERR unknown command '{'x' * 128}', with args beginning with: "),
        ([b"object", b"nope"], "ERR unknown subcommand 'nope'. Try OBJECT HELP."),
        ([b"OBJECT"], "ERR wrong number of arguments for 'object' command"),
        ([b"Object", b"Encoding"], "ERR wrong number of arguments for 'object|encoding' command"),
        ([b"GeT"], "ERR wrong number of arguments for 'get' command"),
        ([b"get", b"a", b"b"], "ERR wrong number of arguments for 'get' command"),
    ],
)
def test_errors_for_unknown_commands_are_those_of_redis(argv: list[bytes], text: str) -> None:
    with pytest.raises(CommandError) as caught:
        lookup(argv)
    assert caught.value.text == text


def test_commands_are_found_in_any_case() -> None:
    assert lookup([b"gEt", b"a"]) is TABLE[b"get"]
    assert lookup([b"OBJECT", b"eNcOdInG", b"a"]).name == "object|encoding"
