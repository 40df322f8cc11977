"""COMMAND and its subcommands, and that their replies agree with each other."""

from __future__ import annotations

from typing import Any

import hiredis
import pytest

from commands.declare import all_commands, top_commands
from commands.session import Session
from tests.commands.fakeserver import FakeServer


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def me(server: FakeServer) -> Session:
    return server.connect()


def ask(server: FakeServer, session: Session, *words: str) -> Any:
    """The reply as Python values; an error as its text."""
    reader = hiredis.Reader(encoding="latin-1")
    reader.feed(server.run(session, *words))
    value = reader.gets()
    assert value is not False
    assert reader.gets() is False
    return str(value) if isinstance(value, hiredis.ReplyError) else value


def test_count_list_and_info_agree(server: FakeServer, me: Session) -> None:
    listed = ask(server, me, "COMMAND", "LIST")
    assert listed == [each.called for each in all_commands()]
    names = [name for name in listed if "|" not in name]
    assert ask(server, me, "COMMAND", "COUNT") == len(names) == len(set(names))
    assert [row[0] for row in ask(server, me, "COMMAND")] == names
    assert [row[0] for row in ask(server, me, "COMMAND", "INFO")] == names
    assert ask(server, me, "COMMAND", "DOCS")[::2] == names
    assert {"ping", "tappend", "client", "exec", "publish"} <= set(names)


def test_info_row(server: FakeServer, me: Session) -> None:
    ping, nothing, container, sub = ask(server, me, "COMMAND", "INFO", "PING", "no-such", "slowlog", "Slowlog|LEN")
    assert ping[:2] == ["ping", -1]
    assert ping[2] == ["fast"]
    assert ping[3:6] == [0, 0, 0]
    assert sorted(ping[6]) == ["@connection", "@fast"]
    assert len(ping) == 10
    assert nothing is None
    assert container[1] == -2
    assert [row[0] for row in container[9]] == ["slowlog|get", "slowlog|help", "slowlog|len", "slowlog|reset"]
    assert sub[:2] == ["slowlog|len", 2]
    assert ask(server, me, "COMMAND", "INFO", "ping|len") == [None]
    me.proto = 3
    assert ask(server, me, "COMMAND", "INFO", "no-such") == [None]


def test_list_filters(server: FakeServer, me: Session) -> None:
    def names(*words: str) -> Any:
        return ask(server, me, "COMMAND", "LIST", "FILTERBY", *words)

    assert names("PATTERN", "slowlog*") == ["slowlog", "slowlog|get", "slowlog|help", "slowlog|len", "slowlog|reset"]
    assert names("pattern", "EX[E]C") == ["exec"]
    assert "exec" in names("ACLCAT", "Transaction")
    assert "tappend" not in names("ACLCAT", "transaction")
    assert names("ACLCAT", "no-such") == names("MODULE", "x") == []
    assert names("COLOUR", "x") == "ERR syntax error"
    assert ask(server, me, "COMMAND", "LIST", "FILTERBY", "MODULE") == "ERR syntax error"


def test_docs_as_map_and_as_flat_array(server: FakeServer, me: Session) -> None:
    flat = ask(server, me, "COMMAND", "DOCS", "select", "no-such", "CLIENT|UNBLOCK")
    assert flat[::2] == ["select", "client|unblock"]
    me.proto = 3
    docs = ask(server, me, "COMMAND", "DOCS", "select", "client|unblock")
    assert docs["select"]["group"] == "connection"
    assert docs["select"]["arguments"] == [{"name": "index", "type": "integer", "display_text": "index"}]
    kinds = docs["client|unblock"]["arguments"][1]
    assert (kinds["type"], list(kinds["flags"])) == ("oneof", ["optional"])
    assert [(kind["type"], kind["token"]) for kind in kinds["arguments"]] == [
        ("pure-token", "TIMEOUT"),
        ("pure-token", "ERROR"),
    ]
    assert dict(zip(flat[1][::2], flat[1][1::2], strict=True)).keys() == docs["select"].keys()


def test_getkeys(server: FakeServer, me: Session) -> None:
    def keys(*words: str) -> Any:
        return ask(server, me, "COMMAND", "GETKEYS", *words)

    assert keys("WATCH", "a", "b") == ["a", "b"]
    assert keys("tappend", "s", "f", "v") == ["s"]
    assert keys("memory", "usage", "k") == ["k"]
    assert keys("MSET", "a", "1", "b", "2") == ["a", "b"]
    assert keys("no-such", "x") == "ERR Invalid command specified"
    assert keys("PING", "x") == "ERR The command has no key arguments"
    assert keys("TAPPEND", "s") == "ERR Invalid number of arguments specified for command"
    assert ask(server, me, "COMMAND", "GETKEYSANDFLAGS", "MEMORY", "USAGE", "k") == [["k", ["RO"]]]
    for options, flags in (([], ["OW", "update"]), (["NX", "get"], ["RW", "access", "update"])):
        assert ask(server, me, "COMMAND", "GETKEYSANDFLAGS", "SET", "GET", "v", *options) == [["GET", flags]]


def test_every_command_has_the_documentation_that_hints_need() -> None:
    for each in all_commands():
        assert each.summary.endswith((".", "…")), each.name
        assert each.summary[0].isupper(), each.name
        assert each.complexity, each.name


def test_help_of_every_container_names_its_subcommands(server: FakeServer, me: Session) -> None:
    server.cluster.enabled = True
    server.config.enable_debug_command = "yes"
    for top in top_commands():
        if not top.subcommands:
            continue
        if b"help" not in top.subcommands:
            pytest.fail(f"{top.name} has no HELP")
        lines = ask(server, me, top.name.upper(), "HELP")
        for sub in top.subcommands:
            assert any(line.split(" ")[0] == sub.decode().upper() for line in lines[1::2]), (top.name, sub)
