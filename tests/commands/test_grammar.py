"""The declared trees agree with the parsing of the handlers: argv sampled from a tree gives no arity or syntax error,
and without one of its words it does.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands.context import Context
from commands.declare import Arg, Command, lookup
from commands.registry import TABLE, all_commands
from resp.errors import CommandError
from tests.commands.fakeserver import FakeServer

COMMANDS = [cmd for cmd in all_commands() if not cmd.bare]
WORDS = {"integer": b"10", "double": b"1.5", "unix-time": b"33000000000", "pattern": b"*"}

COMPLAINTS = (
    "syntax error", "wrong number of arguments", "unsupported option", "unrecognized option", "unknown subcommand",
    "invalid condition", "unrecognized xclaim option", "unrecognized xnack option",
)  # fmt: skip

Choose = Callable[[Arg], bool]  # whether an optional argument is present


def word_of(node: Arg) -> bytes:
    """A value for an argument, chosen by its type, or by its name where the type allows too much."""
    if node.name.endswith("-id") or node.name in ("id", "lastid", "start", "end"):
        return b"5.1"
    if node.name == "min-idle-time":
        return b"10"
    if node.name == "cursor":
        return b"0"
    if node.name == "protover":
        return b"3"
    if node.name in ("numkeys", "numids"):
        return b"1"
    return WORDS.get(node.type, node.name.encode())


def words_of(node: Arg, data: st.DataObject | None, there: Choose, again: int = 1) -> list[bytes]:
    """Words for a node that is present. Without ``data``: the shortest alternative, and everything once."""
    words: list[bytes] = []
    if node.type == "pure-token":
        assert node.token is not None
        return [node.token.encode()]
    if node.token:
        words.append(node.token.encode())
    times = data.draw(st.integers(1, 3)) if data is not None and node.multiple else again
    for _ in range(times):
        if node.type == "oneof":
            child = data.draw(st.sampled_from(node.children)) if data is not None else smallest(node)
            words += words_of(child, data, there)
        elif node.type == "block":
            for child in node.children:
                if not child.optional or there(child):
                    words += words_of(child, data, there)
        else:
            words.append(word_of(node))
    return words


def smallest(node: Arg) -> Arg:
    return min(node.children, key=lambda child: child.words()[0])


def argv_of(cmd: Command, data: st.DataObject | None, there: Choose) -> list[bytes]:
    argv = [part.encode() for part in cmd.name.upper().split("|")]
    for node in cmd.args:
        if not node.optional or there(node):
            argv += words_of(node, data, there)
    if cmd.name in ("tmappend", "tstage"):  # a number that says how many of the words that follow are fields
        first, at = argv.index(b"FIELDS") + 2, argv.index(b"VALUES")
        argv[first - 1] = b"%d" % (at - first)
        argv[at + 1 :] = [b"v"] * (at - first)
    if b"IDS" in argv:  # and how many of them are IDs
        at = argv.index(b"IDS") + 2
        argv[at - 1] = b"%d" % argv[at:].count(b"5.1")
    if cmd.name == "msetex":  # the same with keys
        argv[1] = b"%d" % max(1, argv.count(b"key"))
    if cmd.name == "acl|setuser":
        argv[3:] = [b"on"] * len(argv[3:])
    if cmd.name in ("shutdown", "failover") and b"ABORT" in argv:  # must be the only word, which the tree can't say
        argv = [argv[0], b"ABORT"]
    if cmd.name == "increx" and b"PERSIST" in argv and b"ENX" in argv:  # nor that these exclude each other
        argv.remove(b"ENX")
    return argv


def complaint(argv: list[bytes]) -> str:
    """The arity or syntax error that argv gives; empty for none."""
    server = FakeServer()
    session = server.connect()
    session.multi = argv[0] in (b"EXEC", b"DISCARD")
    if argv[0] in (b"XCLAIM", b"XNACK"):  # whose options are read once the group is found
        made = [b"XGROUP", b"CREATE", b"key", b"group", b"0", b"MKSTREAM"]
        lookup(made).handler(Context(server.ks, server, session, server.ms), made)
    try:
        lookup(argv).handler(Context(server.ks, server, session, server.ms), argv)
    except CommandError as error:
        return error.text if any(words in error.text.lower() for words in COMPLAINTS) else ""
    return ""


@pytest.mark.parametrize("cmd", COMMANDS, ids=lambda cmd: cmd.name)
def test_words_that_fit_the_tree_are_accepted(cmd: Command) -> None:
    @settings(max_examples=20, deadline=None, database=None)
    @given(st.data())
    def sampled(data: st.DataObject) -> None:
        argv = argv_of(cmd, data, lambda node: data.draw(st.booleans(), label=node.name))
        assert complaint(argv) == "", argv

    sampled()


@pytest.mark.parametrize("cmd", COMMANDS, ids=lambda cmd: cmd.name)
def test_one_word_fewer_than_the_tree_needs_is_refused(cmd: Command) -> None:
    least = argv_of(cmd, None, lambda node: False)
    if cmd.arity < 0 and len(least) > -cmd.arity:
        pytest.fail(f"{least} has more words than the arity {cmd.arity} asks for")
    fewer = least[:-1]
    if "|" in cmd.name and len(fewer) == 1 and not TABLE[fewer[0]].bare:
        return  # COMMAND COUNT without its second word is COMMAND
    if fewer:
        assert complaint(fewer)


def half_options() -> list[tuple[Command, str]]:
    """Options that take a value. If all other options are left out, the value is the last word."""
    found = []
    for cmd in COMMANDS:
        for node in cmd.args:
            if node.optional:
                choices = node.children if node.type == "oneof" and not node.token else (node,)
                found += [(cmd, choice.name) for choice in choices if choice.words()[0] >= 2]
    return found


@pytest.mark.parametrize(("cmd", "name"), half_options(), ids=lambda part: getattr(part, "name", part))
def test_an_option_without_its_last_word_is_refused(cmd: Command, name: str) -> None:
    words = [part.encode() for part in cmd.name.upper().split("|")]
    for node in cmd.args:
        choices = node.children if node.type == "oneof" and not node.token else (node,)
        for choice in choices if node.optional else ():
            if choice.name == name:
                words += words_of(choice, None, lambda inner: False)
                assert complaint(words[:-1]), words[:-1]
                return
        if not node.optional:
            words += words_of(node, None, lambda inner: False)
    pytest.fail(f"{cmd.name} has no option {name}")
