"""COMMAND: the commands of this server, for clients and for the hints of redis-cli.

All replies are derived from the declarations (``commands.declare``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from commands.context import Context, Reply
from commands.declare import (
    MOST_NAMES,
    TABLE,
    Command,
    all_commands,
    arg,
    command,
    docs_tree,
    find,
    find_keys,
    info_row,
    oneof,
    opt,
    top_commands,
)
from commands.glob import glob_match
from commands.grammar import shown_flag
from commands.slicing import in_pieces
from resp import errors, reply
from resp.errors import CommandError

_command = partial(command, flags="loading stale", group="server", acl="connection")


def _encoded(proto: int, value: object) -> bytes:
    """Encode the results of ``docs_tree`` and ``info_row``. redis-cli requires words in sets to be simple strings."""
    if isinstance(value, frozenset):
        return reply.set_reply(proto, [reply.simple(word.encode()) for word in sorted(value)])
    if isinstance(value, tuple):
        return reply.set_reply(proto, [_encoded(proto, x) for x in value])
    if isinstance(value, dict):
        return reply.map_reply(proto, [(reply.bulk(name.encode()), _encoded(proto, x)) for name, x in value.items()])
    if isinstance(value, list):
        return reply.array([_encoded(proto, x) for x in value])
    return reply.encode(proto, value)


def _named(name: bytes) -> Command | None:
    """Return a command by its full name in any case, with a subcommand as ``client|id``; None if there is none."""
    parts = name.split(b"|")
    found = find(parts) if len(parts) <= 2 else None
    # find() ignores the second word if the command has no subcommands
    return found if found is not None and found.called.encode() == name.lower() else None


def _called(argv: list[bytes]) -> Command | None:
    """Return the command that a full argument list calls, even if the number of arguments is wrong."""
    top = TABLE.get(argv[0].lower())
    if top is None or not top.subcommands or len(argv) == 1:
        return top
    return top.subcommands.get(argv[1].lower())


@_command("COMMAND", arity=-1, complexity="O(N): N commands.")
def command_(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the reply of COMMAND INFO for all commands."""
    return _encoded(ctx.session.proto, [info_row(each) for each in top_commands()])


@_command("COMMAND|COUNT")
def command_count(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of commands, without subcommands."""
    return reply.integer(len(top_commands()))


@_command(
    "COMMAND|INFO", opt(arg("command-name", multiple=True)), complexity="O(N): N commands named.", most=MOST_NAMES,
)  # fmt: skip
def command_info(ctx: Context, argv: list[bytes]) -> Reply:
    """Return arity, flags, key positions and ACL categories of the named commands, or of all."""
    proto = ctx.session.proto
    if len(argv) == 2:
        return _encoded(proto, [info_row(each) for each in top_commands()])
    rows: dict[str, bytes] = {}
    parts = [reply.array_header(len(argv) - 2)]
    for name in argv[2:]:
        found = _named(name)
        if found is None:
            parts.append(reply.null(proto))
            continue
        row = rows.get(found.name)
        if row is None:
            row = rows[found.name] = _encoded(proto, info_row(found))
        parts.append(row)
    return in_pieces(parts)


@_command(
    "COMMAND|DOCS", opt(arg("command-name", multiple=True)), complexity="O(N): N commands named.", most=MOST_NAMES,
)  # fmt: skip
def command_docs(ctx: Context, argv: list[bytes]) -> Reply:
    """Return summary, group, complexity and argument tree of the named commands, or of all."""
    if len(argv) == 2:
        wanted = top_commands()
    else:
        wanted = list(dict.fromkeys([found for found in map(_named, argv[2:]) if found is not None]))
    return _encoded(ctx.session.proto, {each.called: docs_tree(each) for each in wanted})


@_command(
    "COMMAND|LIST",
    opt(
        oneof(
            "filterby",
            arg("module-name", token="MODULE"),
            arg("category", token="ACLCAT"),
            arg("pattern", "pattern", token="PATTERN"),
            token="FILTERBY",
        )
    ),
    complexity="O(N): N commands.",
)  # fmt: skip
def command_list(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the names of the commands and subcommands."""
    if len(argv) == 2:
        return reply.bulk_array([each.called.encode() for each in all_commands()])
    if len(argv) != 5 or argv[2].upper() != b"FILTERBY":
        raise errors.syntax()
    fits = _list_filter(argv[3].upper(), argv[4])
    return reply.bulk_array([each.called.encode() for each in all_commands() if fits(each)])


def _list_filter(kind: bytes, value: bytes) -> Callable[[Command], bool]:
    if kind == b"MODULE":
        return lambda _: False  # there are no modules
    if kind == b"ACLCAT":
        category = value.decode("latin-1").lower()
        return lambda each: category in each.acl_categories
    if kind == b"PATTERN":
        pattern = value.lower()
        return lambda each: glob_match(pattern, each.called.encode())
    raise errors.syntax()


def _keys(argv: list[bytes]) -> list[tuple[bytes, tuple[str, ...]]]:
    """Return the keys in a full command, with their flags. Raises CommandError."""
    found = _called(argv)
    if found is None:
        raise CommandError(errors.BAD_COMMAND)
    if not any(spec.real for spec in found.key_specs):
        raise CommandError(errors.COMMAND_WITHOUT_KEYS)
    if not found.takes(len(argv)):
        raise CommandError(errors.COMMAND_ARITY)
    keys = find_keys(found, argv)
    if not keys and "no_mandatory_keys" not in found.flags and any(not spec.keyword for spec in found.key_specs):
        raise CommandError(errors.COMMAND_ARGUMENTS)
    return keys


def _flagged(argv: list[bytes]) -> list[tuple[bytes, list[str]]]:
    """Return the keys in a full command, and their flags in this call, as Redis prints them."""
    found = []
    for name, flags in _keys(argv):
        here = list(map(shown_flag, flags))
        if "variable_flags" in here:  # the flags of SET: with GET it also reads the key
            here = ["RW", "access", "update"] if b"GET" in [word.upper() for word in argv[3:]] else ["OW", "update"]
        found.append((name, here))
    return found


@_command(
    "COMMAND|GETKEYS", arg("command"), opt(arg("arg", multiple=True)), arity=-3, most=MOST_NAMES,
    complexity="O(N): N arguments of the command.",
)  # fmt: skip
def command_getkeys(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the keys in a full command."""
    return reply.bulk_array([name for name, _ in _keys(argv[2:])])


@_command(
    "COMMAND|GETKEYSANDFLAGS", arg("command"), opt(arg("arg", multiple=True)), arity=-3, most=MOST_NAMES,
    complexity="O(N): N arguments of the command.",
)  # fmt: skip
def command_getkeysandflags(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the keys in a full command, with their flags."""
    proto = ctx.session.proto
    return reply.array(
        [
            reply.array([reply.bulk(name), reply.set_reply(proto, [reply.simple(flag.encode()) for flag in flags])])
            for name, flags in _flagged(argv[2:])
        ]
    )
