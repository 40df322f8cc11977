"""Declarations of commands: the decorator, the table, and the search for the command that a list of arguments calls.

Rule 1: a command is declared once, above its handler. Arity, key positions, ACL categories, COMMAND INFO, COMMAND
DOCS, COMMAND GETKEYS and the reference page are derived from the declaration. The first docstring line is the summary.
Rule 2: the argument tree is used only at import and by COMMAND; handlers parse argv themselves.
Rule 3: ACL categories that follow from flags or the group are not declared (a write command is @write, and a command
that is not fast is @slow).

An invalid declaration raises ValueError at import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FunctionType
from typing import Final

from commands.context import Context, Reply
from commands.grammar import (
    Arg,
    KeySpec,
    arg,
    block,
    count_words,
    key,
    key_specs,
    oneof,
    opt,
    repeat,
    shown_flag,
    token,
)
from commands.refusals import refusal
from commands.summaries import summary_of
from commands.tips import TIPS
from resp import errors
from resp.decode import Call, Head
from resp.errors import CommandError
from storage.keyspace.keyspace import Keyspace

__all__ = [
    "DECLARED", "FLAGS", "GROUPS", "HEADS", "TABLE", "TRAITS", "AlikeHandler", "Arg", "BatchHandler", "Command",
    "GroupHandler", "Handler", "KeySpec", "alike", "all_commands", "arg", "batch", "block", "command",
    "docs_tree", "find", "find_keys", "help_lines", "info_row", "key", "lookup", "oneof", "opt", "repeat", "syntax",
    "together", "token", "top_commands",
]  # fmt: skip

Handler = Callable[[Context, list[bytes]], Reply]
# Executes a pipeline group: calls of one command that arrived together, with the same key (or first argument) and as
# many words. Returns the replies of all calls, or of the first ones, in order; None to have each call executed alone.
# Only the number of items and their concatenation matter: one item may contain the replies of later calls.
BatchHandler = Callable[[Context, list[list[bytes]]], list[bytes] | None]
# Executes calls of one command that arrived together with different keys, from an index on, up to another one (not
# included). The list may also contain other calls, before which it ends. Returns the replies, joined, and the number of
# calls that it has executed; None to have each call executed alone.
GroupHandler = Callable[[Context, list[Call], int, int], tuple[bytes, int] | None]
# Executes consecutive calls that begin with the same words, as many as the command's Head returns. Its arguments are
# the first call, and the wire bytes of each call after these words (see resp.decode.Alike). Returns all replies,
# joined, or nothing to have the calls executed otherwise; it must not have changed anything then.
AlikeHandler = Callable[[Context, list[bytes], list[bytes]], bytes]
# Returns the position of the first key after a token, for commands in which arguments before it could look like the
# token; 0 if there is none.
KeyAfterToken = Callable[[Sequence[bytes]], int]
# Returns the number of the key spec that applies to a call, for commands whose forms have keys at different positions.
KeySpecOf = Callable[[Sequence[bytes]], int]
# Returns keys that a call changes without naming them, as far as they are known before it runs.
Reaches = Callable[[Keyspace, list[bytes]], Iterable[bytes]]

MOST_NAMES: Final = 10_000  # maximum arguments of commands that take names and do little work for each
MANY: Final = 1 << 60  # more arguments than any call has; compiled code is slow with numbers of more than 62 bits

GROUPS: Final = (
    "generic", "string", "stream", "connection", "server", "pubsub", "scripting", "transactions", "cluster",
)  # fmt: skip

FLAGS: Final = frozenset(
    (
        "admin", "allow_busy", "blocking", "denyoom", "fast", "loading", "movablekeys", "no_async_loading", "no_auth",
        "no_mandatory_keys", "no_multi", "noscript", "pubsub", "readonly", "skip_monitor", "skip_slowlog", "stale",
        "write",
    )
)  # fmt: skip

# What the dispatcher must know about a command in addition to Redis's flags. These traits are not published.
TRAITS: Final = frozenset(
    (
        "immediate",  # runs immediately in a transaction instead of being queued
        "runs_queue",  # runs the queued commands of the session; if a check refuses one of them, the call is refused
        "subscribed",  # a client with subscriptions may call it in RESP2
        "unpausable",  # CLIENT PAUSE and FAILOVER do not delay it
        "may_write",  # has no write flag, as in Redis, but some calls change data; ``writes`` decides which
        "brief",  # not called fast by Redis, but a call takes as little time
        "sign_of_life",  # activity of a group [15] or a stage [32], even if the server refuses the call
        "reads_keys",  # returns the contents of its keys, although their flags, which are Redis's, do not show this
        "reaches_replicas",  # writes nothing but affects replicas, so a FAILOVER delays it like a write
    )
)

_GROUP_CATEGORY: Final = {
    "generic": "keyspace", "string": "string", "stream": "stream", "connection": "connection",
    "scripting": "scripting", "transactions": "transaction",
}  # fmt: skip
_FLAG_CATEGORIES: Final = {
    "write": ("write",), "readonly": ("read",), "admin": ("admin", "dangerous"), "pubsub": ("pubsub",),
    "blocking": ("blocking",), "fast": ("fast",),
}  # fmt: skip


# -- commands --------------------------------------------------------------------------------------------------
class Description:
    """What COMMAND DOCS returns about a command besides its summary and arguments."""

    __slots__ = ("complexity", "group", "since")

    def __init__(self, group: str, since: str, complexity: str) -> None:
        self.group = group  # one of GROUPS
        self.since = since  # the first version of tidelog that has the command
        self.complexity = complexity


class Command:
    """A command as declared, and its statistics."""

    __slots__ = (
        "acl_categories", "adds", "alike", "args", "arity", "batch", "brief", "called", "calls", "channels",
        "complexity", "failed", "first", "flags", "group", "handler", "hot_least", "hot_most", "key_after_token",
        "key_spec_of", "key_specs", "key_step", "keys_then_ids", "last", "most", "name", "reaches", "reads", "rejected",
        "several_keys",
        "shows_data", "since", "step", "subcommands", "together", "traits", "usec", "write", "writes",
    )  # fmt: skip

    batch: BatchHandler | None
    alike: AlikeHandler | None
    together: GroupHandler | None

    def __init__(
        self, name: str, handler: Handler, args: tuple[Arg, ...], flags: frozenset[str], about: Description,
        arity: int | None, acl: tuple[str, ...], traits: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        if not flags <= FLAGS:
            raise ValueError(f"{name}: unknown flags {sorted(flags - FLAGS)}")
        if not traits <= TRAITS:
            raise ValueError(f"{name}: unknown traits {sorted(traits - TRAITS)}")
        if about.group not in GROUPS:
            raise ValueError(f"{name}: unknown group {about.group!r}")
        self.name = name  # lower case; "client|id" for a subcommand
        self.called = name  # the name that clients use; it differs from ``name`` after rename-command
        self.handler = handler
        self.args = args
        self.group = about.group
        self.since = about.since
        self.complexity = about.complexity
        self.subcommands: dict[bytes, Command] = {}  # keyed by lower-case name; empty unless this is a container
        named_by = name.count("|") + 1
        least, exact = count_words(args)
        # number of words, including the name; negative: minimum number
        self.arity = arity if arity is not None else (named_by + least if exact else -(named_by + least))
        self.key_specs = tuple(key_specs(args, named_by, named_by))
        # whether a call may have several keys, which share a slot in a cluster; the word before the keys, if it is
        # followed only by keys and as many IDs, as in XREAD, otherwise b""
        self.several_keys, self.keys_then_ids = _several(self.key_specs)
        # the same in Redis's older form: first key, last key (negative: from the end), step; 0 0 0 without keys
        self.first, self.last, self.step, self.key_step = _key_range(self.key_specs)  # key_step: see there
        if any(spec.keyword or spec.counted or spec.option for spec in self.key_specs):
            flags |= {"movablekeys"}
        self.flags = flags
        self.write = "write" in flags or "may_write" in traits
        # whether replies may show data or be results of changes: of all commands that could name a key. The replies of
        # EXEC are those of its commands
        self.shows_data = (
            self.write or "readonly" in flags or bool(self.key_specs) or "reads_keys" in traits
            or name.startswith("debug")
        )
        # whether a call changes data; None: every call of a write command does
        self.writes: Callable[[list[bytes]], bool] | None = None
        # whether a call of a denyoom command adds data; None: every call does
        self.adds: Callable[[list[bytes]], bool] | None = None
        # whether a call reads the contents of its keys; None: every call does
        self.reads: Callable[[list[bytes]], bool] | None = None
        self.key_after_token: KeyAfterToken | None = None
        self.key_spec_of: KeySpecOf | None = None  # None: all specs apply
        self.reaches: Reaches | None = None
        self.most = MANY  # maximum number of words of a call; a longer one would delay other clients too much
        self.channels = ""  # which arguments are channels: first, all, or all as patterns; "": none
        self.traits = traits
        self.acl_categories = _categories(flags, about.group, acl, self.bare)  # without the @
        # statistics since the start or CONFIG RESETSTAT, maintained by the dispatcher: calls, nanoseconds spent, calls
        # that were refused before they ran, and calls whose reply is an error
        self.calls = self.usec = self.rejected = self.failed = 0
        self.batch = self.alike = self.together = None
        # calls that arrived together are timed as one; not for PUBLISH, which can send messages to its own client
        self.brief = ("fast" in flags and "pubsub" not in flags) or "brief" in traits
        # for the dispatcher's fast path: the numbers of words with which it may call the handler without lookup()
        self.hot_least, self.hot_most = (self.arity, self.arity) if self.arity > 0 else (-self.arity, MANY)

    @property
    def summary(self) -> str:
        """The summary in one line."""
        return f"Holds the {self.name.upper()} subcommands." if self.bare else summary_of(self.handler)

    @property
    def bare(self) -> bool:
        """Whether it only has subcommands: true for CLIENT, false for COMMAND, which is also a command itself."""
        return self.handler is _no_subcommand

    def changes(self, argv: list[bytes]) -> bool:
        """Return whether this call changes data."""
        return self.write and (self.writes is None or self.writes(argv))

    def grows(self, argv: list[bytes]) -> bool:
        """Return whether this call may need memory for data, so that it is refused beyond maxmemory."""
        return "denyoom" in self.flags and (self.adds is None or self.adds(argv))

    def keys(self, argv: Sequence[bytes], real: bool = True) -> list[tuple[int, KeySpec]]:
        """Return the positions of the keys in argv, each with its spec. ``real``: without the names that only cluster
        clients treat as keys."""
        return [(at, spec) for positions, spec in self.key_ranges(argv, real) for at in positions]

    def key_ranges(self, argv: Sequence[bytes], real: bool = True) -> list[tuple[range, KeySpec]]:
        """Return keys() as ranges of positions: a call may have a million keys."""
        found: list[tuple[range, KeySpec]] = []
        specs = self.key_specs if self.key_spec_of is None else (self.key_specs[self.key_spec_of(argv)],)
        for spec in specs:
            if real and not spec.real:
                continue
            if spec.keyword and self.key_after_token is not None:
                at = self.key_after_token(argv)
                if at:
                    found.append((spec.span(at, argv), spec))
            else:
                found.append((spec.positions(argv), spec))
        return found

    def limit(self, arguments: int) -> None:
        """Set the maximum number of arguments."""
        self.most = self.name.count("|") + 1 + arguments
        self.hot_most = min(self.hot_most, self.most)

    def takes(self, count: int) -> bool:
        """Return whether it can be called with ``count`` words, including its name."""
        return count == self.arity if self.arity > 0 else count >= -self.arity


def _several(specs: Sequence[KeySpec]) -> tuple[bool, bytes]:
    """Return ``several_keys`` and ``keys_then_ids`` of a command."""
    several = len(specs) > 1 or any(spec.last or spec.counted for spec in specs)
    return several, specs[0].word if len(specs) == 1 and specs[0].halved else b""


def _key_range(specs: Sequence[KeySpec]) -> tuple[int, int, int, int]:
    """Return first, last, step, and the step again if argv[first::step] are all keys of a call; otherwise 0."""
    fixed = [spec for spec in specs if not (spec.keyword or spec.counted or spec.option)]
    if not fixed:
        return 0, 0, 0, 0
    first = fixed[0]
    if first.last < 0 or len(fixed) == 1:
        regular = len(specs) == 1 and first.last < 0 and not first.halved
        last = first.index + first.last if first.last >= 0 else -1
        return first.index, last, first.step, first.step if regular else 0
    step = fixed[1].index - first.index  # each spec is one key
    return first.index, max(spec.index + spec.last for spec in fixed), step, 0


def _categories(flags: frozenset[str], group: str, extra: tuple[str, ...], bare: bool) -> tuple[str, ...]:
    found = set(extra)
    if group in _GROUP_CATEGORY and not bare:
        found.add(_GROUP_CATEGORY[group])
    for flag, categories in _FLAG_CATEGORIES.items():
        if flag in flags:
            found.update(categories)
    if "fast" not in flags:
        found.add("slow")
    return tuple(sorted(found))


# -- the table -------------------------------------------------------------------------------------------------
# All top-level commands by name in lower and in upper case, so that the fast path needs one lookup.
TABLE: Final[dict[bytes, Command]] = {}
# Commands that have a handler for calls that are alike, by name in lower and in upper case: for SharedDecoding.heads.
HEADS: Final[dict[bytes, Head]] = {}
# All commands, containers and subcommands by their declared names, regardless of rename-command.
DECLARED: Final[dict[str, Command]] = {}


def command(
    name: str, *args: Arg, flags: str = "", group: str = "stream", since: str = "0.1.0", complexity: str = "O(1)",
    arity: int | None = None, acl: str = "", traits: str = "", writes: Callable[[list[bytes]], bool] | None = None,
    reads: Callable[[list[bytes]], bool] | None = None, key_after_token: KeyAfterToken | None = None,
    reaches: Reaches | None = None, channels: str = "", adds: Callable[[list[bytes]], bool] | None = None,
    key_spec_of: KeySpecOf | None = None, most: int = 0,
) -> Callable[[Handler], Handler]:  # fmt: skip
    """Declare the decorated handler as a command. ``"CLIENT|ID"`` is a subcommand; its container is declared
    implicitly.

    ``flags``, ``traits`` and ``acl`` (categories that follow neither from the flags nor from the group) are
    space-separated. ``arity`` overrides the arity of the argument tree. ``writes(argv)``: whether a call of a write
    command changes data (default: yes). ``reads(argv)``: whether a call of a command whose keys have the flag ACCESS
    reads what they hold (default: yes). ``adds(argv)``: whether a call of a denyoom command adds data (default: yes).
    ``key_after_token``, ``key_spec_of``, ``reaches``: see these types. ``channels``: which arguments name channels of
    pub/sub: ``first``, ``all``, or ``patterns`` for patterns only. ``most``: the maximum number of arguments; 0: only
    the limit of the protocol. The first docstring line is the summary.
    """

    def declare(handler: Handler) -> Handler:
        # compiled handlers have no docstrings
        if isinstance(handler, FunctionType) and not (handler.__doc__ or "").strip():
            raise ValueError(f"{name}: the handler needs a docstring, its first line is the summary")
        declared = Command(
            name.lower(), handler, args, frozenset(flags.split()), Description(group, since, complexity), arity,
            tuple(acl.split()), frozenset(traits.split()),
        )  # fmt: skip
        declared.writes, declared.reads, declared.adds = writes, reads, adds
        declared.key_after_token, declared.reaches, declared.channels = key_after_token, reaches, channels
        declared.key_spec_of = key_spec_of
        if most:
            declared.limit(most)
        _register(declared)
        return handler

    return declare


def batch(name: str) -> Callable[[BatchHandler], BatchHandler]:
    """Declare the decorated function as the batch handler of a command that is declared already."""

    def declare(handler: BatchHandler) -> BatchHandler:
        TABLE[name.lower().encode()].batch = handler
        return handler

    return declare


def together(name: str) -> Callable[[GroupHandler], GroupHandler]:
    """Declare the decorated function as the handler of calls with different keys, for a command that is declared
    already. The command must be brief, and have one key, its first argument."""

    def declare(handler: GroupHandler) -> GroupHandler:
        TABLE[name.lower().encode()].together = handler
        return handler

    return declare


def alike(name: str, head: Head) -> Callable[[AlikeHandler], AlikeHandler]:
    """Declare the decorated function as the handler of calls that begin with the same words, for a command that is
    declared already. ``head``: how many words these are, by the first call; 0 if the call is not for this handler."""

    def declare(handler: AlikeHandler) -> AlikeHandler:
        word = name.encode()
        TABLE[word].alike = handler
        HEADS[word] = HEADS[word.lower()] = head
        return handler

    return declare


def _register(new: Command) -> None:
    top, _, sub = new.name.partition("|")
    old = TABLE.get(top.encode())
    if sub:
        if old is None:
            old = _container(top, new.group, new.since)
        if sub.encode() in old.subcommands:
            raise ValueError(f"{new.name} is declared twice")
        old.subcommands[sub.encode()] = DECLARED[new.name] = new
        old.hot_least = MANY
        return
    if old is not None:
        if not old.bare:
            raise ValueError(f"{new.name} is declared twice")
        new.subcommands = old.subcommands  # COMMAND is a command and a container
        new.hot_least = MANY
    TABLE[top.encode()] = TABLE[top.upper().encode()] = DECLARED[top] = new


def _container(name: str, group: str, since: str) -> Command:
    about = Description(group, since, "Depends on subcommand.")
    made = Command(name, _no_subcommand, (), frozenset(), about, -2, ())
    TABLE[name.encode()] = TABLE[name.upper().encode()] = DECLARED[name] = made
    return made


def _no_subcommand(ctx: Context, argv: list[bytes]) -> Reply:
    raise _unknown_subcommand(argv)


def _unknown_subcommand(argv: Sequence[bytes]) -> CommandError:
    name = errors.show(argv[0]).upper()
    refused = refusal(name, errors.show(argv[1], 128))
    if refused:
        return CommandError(refused)
    return CommandError(f"ERR unknown subcommand '{_printed(argv[1], 128)}'. Try {name} HELP.")


def _unknown_command(argv: Sequence[bytes]) -> CommandError:
    shown = ""
    for word in argv[1:]:
        if len(shown) >= 128:
            break
        shown += f"'{_printed(word, 128 - len(shown))}' "
    return CommandError(f"ERR unknown command '{_printed(argv[0], 128)}', with args beginning with: {shown}")


def _printed(word: bytes, limit: int) -> str:
    """Return a word as Redis prints it in an error: up to its first NUL byte."""
    return errors.show(word.split(b"\0", 1)[0], limit)


def find(words: Sequence[bytes]) -> Command | None:
    """Return the command, or with a second word the subcommand, of this name in any case; None if there is none."""
    found = TABLE.get(words[0]) or TABLE.get(words[0].lower())
    if found is None or len(words) == 1 or not found.subcommands:
        return found
    return found.subcommands.get(words[1].lower())


def lookup(argv: Sequence[bytes]) -> Command:
    """Return the command that argv calls. Raises CommandError (unknown command or subcommand, wrong arity)."""
    found = TABLE.get(argv[0]) or TABLE.get(argv[0].lower())
    if found is None:
        raise _unknown_command(argv)
    if found.subcommands and len(argv) > 1:
        sub = found.subcommands.get(argv[1].lower())
        if sub is None:
            raise _unknown_subcommand(argv)
        found = sub
    if not found.takes(len(argv)):
        raise errors.arity(found.called)
    if len(argv) > found.most:
        words = found.name.count("|") + 1
        raise errors.too_many_arguments(found.called, len(argv) - words, found.most - words)
    return found


def top_commands() -> list[Command]:
    """Return all commands without subcommands, in alphabetical order."""
    return sorted((cmd for word, cmd in TABLE.items() if word == word.lower()), key=lambda cmd: cmd.called)


def all_commands() -> Iterator[Command]:
    """Yield all commands, containers and subcommands. A container precedes its subcommands."""
    for top in top_commands():
        yield top
        for _, sub in sorted(top.subcommands.items()):
            yield sub


# -- documentation ---------------------------------------------------------------------------------------------
def find_keys(cmd: Command, argv: Sequence[bytes]) -> list[tuple[bytes, tuple[str, ...]]]:
    """Return the keys in argv, each with its key flags, for COMMAND GETKEYS and GETKEYSANDFLAGS."""
    return [(argv[at], spec.flags) for at, spec in cmd.keys(argv)]


def syntax(cmd: Command) -> str:
    """Return the syntax line: ``TRANGE key start-id end-id [COUNT count]``."""
    return " ".join([cmd.called.replace("|", " ").upper(), *[_shown(node) for node in cmd.args]])


def _shown(node: Arg) -> str:
    if node.type == "pure-token":
        text = node.token or ""
    elif node.type == "oneof":
        text = " | ".join([_shown(child) for child in node.children])
        if not node.optional or node.token:
            text = f"<{text}>"
    elif node.type == "block":
        text = " ".join([_shown(child) for child in node.children])
    else:
        text = node.name
    if node.multiple:
        text = f"{text} [{text} ...]"
    if node.token and node.type != "pure-token":
        text = f"{node.token} {text}"
    return f"[{text}]" if node.optional else text


def docs_tree(cmd: Command) -> dict[str, object]:
    """Return COMMAND DOCS of one command as Python objects; sets are sets in RESP3."""
    tree: dict[str, object] = {
        "summary": cmd.summary, "since": cmd.since, "group": cmd.group, "complexity": cmd.complexity,
    }  # fmt: skip
    if cmd.args:
        specs = _spec_numbers(cmd.args, iter(range(len(cmd.key_specs))), {})
        tree["arguments"] = [_arg_docs(node, specs) for node in cmd.args]
    if cmd.subcommands:
        tree["subcommands"] = {sub.called: docs_tree(sub) for _, sub in sorted(cmd.subcommands.items())}
    return tree


def _spec_numbers(args: Sequence[Arg], numbers: Iterator[int], found: dict[int, int]) -> dict[int, int]:
    """Return the numbers of the key specs by id() of the key nodes. Both are in the order of the tree."""
    for node in args:
        if node.type == "key":
            found[id(node)] = next(numbers)
        _spec_numbers(node.children, numbers, found)
    return found


def _arg_docs(node: Arg, specs: dict[int, int]) -> dict[str, object]:
    real = node.type == "key" and "not_key" not in node.access
    docs: dict[str, object] = {"name": node.name, "type": "string" if node.type == "key" and not real else node.type}
    if not node.children:
        docs["display_text"] = node.name
    if real:
        docs["key_spec_index"] = specs[id(node)]
    if node.token:
        docs["token"] = node.token
    flags = [word for word, there in (("optional", node.optional), ("multiple", node.multiple)) if there]
    if flags:
        docs["flags"] = frozenset(flags)
    if node.children:
        docs["arguments"] = [_arg_docs(child, specs) for child in node.children]
    return docs


def info_row(cmd: Command) -> list[object]:
    """Return COMMAND INFO of one command as Python objects. Tuples are sets in RESP3."""
    return [
        cmd.called, cmd.arity, frozenset(cmd.flags), cmd.first, cmd.last, cmd.step,
        frozenset("@" + category for category in cmd.acl_categories),
        TIPS.get(cmd.name, ()),
        tuple([_spec_docs(spec) for spec in cmd.key_specs]),
        [info_row(sub) for _, sub in sorted(cmd.subcommands.items())] or (),
    ]  # fmt: skip


def _spec_docs(spec: KeySpec) -> dict[str, object]:
    if spec.option:  # a client must use COMMAND GETKEYS, as for SORT in Redis
        unknown: dict[str, object] = {"type": "unknown", "spec": {}}
        return {"flags": frozenset(map(shown_flag, spec.flags)), "begin_search": unknown, "find_keys": unknown}
    if spec.keyword:
        begin: dict[str, object] = {
            "type": "keyword", "spec": {"keyword": spec.keyword, "startfrom": spec.index},
        }  # fmt: skip
    else:
        begin = {"type": "index", "spec": {"index": spec.index}}
    found: dict[str, object] = {
        "type": "range", "spec": {"lastkey": spec.last, "keystep": spec.step, "limit": 2 if spec.halved else 0},
    }  # fmt: skip
    if spec.counted:
        found = {"type": "keynum", "spec": {"keynumidx": 0, "firstkey": 1, "keystep": spec.step}}
    return {
        "flags": frozenset(map(shown_flag, spec.flags)),
        "begin_search": begin,
        "find_keys": found,
    }


def help_lines(container: str) -> list[str]:
    """Return the lines of a HELP subcommand: a heading, then the syntax of each subcommand and its indented summary."""
    name = container.lower()
    top = next(cmd for cmd in TABLE.values() if cmd.name == name)
    lines = [f"{top.called.upper()} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"]
    for _, sub in sorted(top.subcommands.items()):
        lines += [syntax(sub).split(" ", 1)[1], "    " + sub.summary]
    return lines
