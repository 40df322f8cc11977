"""The arguments of a command, declared as a tree.

    key("RW"), repeat(block("data", arg("field"), arg("value"))), opt(arg("count", "integer", token="COUNT"))

Arity and key positions are derived from it. An invalid tree raises ValueError at import.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

ARG_TYPES: Final = frozenset(
    ("string", "integer", "double", "key", "pattern", "unix-time", "pure-token", "oneof", "block")
)

KEY_FLAGS: Final = frozenset(
    ("RO", "RW", "OW", "RM", "ACCESS", "UPDATE", "INSERT", "DELETE", "VARIABLE_FLAGS", "not_key", "incomplete")
)


class Arg:
    """A node of an argument tree. Immutable."""

    __slots__ = ("access", "children", "multiple", "name", "optional", "token", "type")

    def __init__(
        self, name: str, kind: str, token: str | None, children: tuple[Arg, ...] = (), access: str = "",
        optional: bool = False, multiple: bool = False,
    ) -> None:  # fmt: skip
        if kind not in ARG_TYPES:
            raise ValueError(f"argument {name!r}: {kind!r} is not an argument type")
        if kind == "pure-token" and not token:
            raise ValueError(f"argument {name!r}: a pure-token needs its token")
        self.name = name  # as shown in the syntax line
        self.type = kind  # one of ARG_TYPES
        self.token = token  # the word before it (a pure-token consists only of that word); None: none
        self.children = children  # children of a oneof or a block; otherwise empty
        self.access = access  # key flags of a key, space-separated; otherwise empty
        self.optional = optional
        self.multiple = multiple  # one or more times; a token occurs once, before the first

    def words(self) -> tuple[int, bool]:
        """Return the minimum number of words if the node is present, and whether it is the only possible number."""
        if self.type == "pure-token":
            return 1, not self.multiple
        if self.type == "oneof":
            sizes = [child.words() for child in self.children]
            least = min(size for size, _ in sizes)
            exact = all(fixed and size == least for size, fixed in sizes)
        elif self.type == "block":
            least, exact = count_words(self.children)
        else:
            least, exact = 1, True
        return least + (1 if self.token else 0), exact and not self.multiple

    def with_(self, optional: bool | None = None, multiple: bool | None = None) -> Arg:
        return Arg(
            self.name, self.type, self.token, self.children, self.access,
            self.optional if optional is None else optional, self.multiple if multiple is None else multiple,
        )  # fmt: skip


def count_words(args: Sequence[Arg]) -> tuple[int, bool]:
    """Return the minimum number of words of all arguments together, and whether it is the only possible number."""
    least, exact = 0, True
    for node in args:
        size, fixed = node.words()
        if node.optional:
            exact = False
        else:
            least += size
            exact = exact and fixed
    return least, exact


def key(access: str, name: str = "key", token: str | None = None, multiple: bool = False) -> Arg:
    """Declare a key. ``access``: Redis's key flags, as in ``"RW UPDATE"``."""
    words = access.split()
    if not words or not KEY_FLAGS.issuperset(words):
        raise ValueError(f"key {name!r}: {access!r} are not key flags")
    return Arg(name, "key", token, access=access, multiple=multiple)


def arg(name: str, type: str = "string", token: str | None = None, multiple: bool = False) -> Arg:  # noqa: A002
    """Declare a value; the word ``token``, if any, precedes it."""
    return Arg(name, type, token, multiple=multiple)


def token(word: str, name: str | None = None) -> Arg:
    """Declare a word without a value, such as ``NX``."""
    return Arg(name or word.lower(), "pure-token", word)


def oneof(name: str, *children: Arg, token: str | None = None) -> Arg:
    """Declare a choice: exactly one of the children."""
    return Arg(name, "oneof", token, children)


def block(name: str, *children: Arg, token: str | None = None) -> Arg:
    """Declare a sequence: all children, in this order."""
    return Arg(name, "block", token, children)


def opt(node: Arg) -> Arg:
    return node.with_(optional=True)


def repeat(node: Arg) -> Arg:
    """Repeat a node one or more times; ``opt(repeat(...))`` allows any number."""
    return node.with_(multiple=True)


# -- keys ------------------------------------------------------------------------------------------------------
# an integer of this name is the number of the keys, or of the blocks with keys, that follow it
NUMKEYS: Final = "numkeys"
_Option = tuple[str, int, int]  # an option's token, its position, and the number of its words
_COUNT_DIGITS: Final = 9  # a number of keys with more digits is larger than a call can have


def shown_flag(flag: str) -> str:
    """Return a key flag as Redis prints it: only the first four are in upper case."""
    return flag if len(flag) == 2 else flag.lower()


class KeySpec:
    """The positions of keys, as in COMMAND INFO: the position of the first one, and the range from there."""

    __slots__ = (
        "counted", "flags", "halved", "index", "keyword", "last", "option", "option_words", "real", "reads", "step",
        "word", "writes",
    )  # fmt: skip

    def __init__(
        self, flags: tuple[str, ...], index: int, keyword: str, last: int, step: int, counted: bool = False,
        halved: bool = False, option: str = "", option_words: int = 0,
    ) -> None:  # fmt: skip
        self.flags = flags
        # position of the first key in argv, or where the search for ``keyword`` starts; if ``counted``, the position of
        # the number of keys, which precedes them
        self.index = index
        self.counted = counted
        self.keyword = keyword  # the word before the first key; "": the first key is at ``index``
        self.word = keyword.encode()
        self.last = last  # the last key, counted from the first; -1: the last argument
        self.step = step  # from one key to the next
        self.halved = halved  # only the first half of the range are keys; the other half are other words (XREAD)
        # an option that may precede the first key at ``index``, and the number of its words; "": none
        self.option = option
        self.option_words = option_words
        self.real = "not_key" not in flags  # False: a name that cluster clients treat as a key, such as a shard channel
        self.reads = "ACCESS" in flags  # what a key holds is read, not only its existence and size
        self.writes = not {"INSERT", "UPDATE", "DELETE"}.isdisjoint(flags)

    def positions(self, argv: Sequence[bytes]) -> range:
        """Return the positions of the keys in argv."""
        first = self.index
        if self.counted:
            raw = argv[first] if first < len(argv) else b""
            count = int(raw) if raw.isdigit() and len(raw) <= _COUNT_DIGITS else 0
            return range(first + 1, min(first + 1 + count * self.step, len(argv)), self.step)
        if self.keyword:
            word = self.word
            for at in range(first, len(argv)):
                if len(argv[at]) == len(word) and argv[at].upper() == word:
                    first = at + 1
                    break
            else:
                return range(0)
        if self.option and first < len(argv) and argv[first].upper() == self.option.encode():
            first += self.option_words
        return self.span(first, argv)

    def span(self, first: int, argv: Sequence[bytes]) -> range:
        """Return positions() for a known first key."""
        last = first + self.last if self.last >= 0 else len(argv) - 1
        if self.halved:
            last = first + (last - first + 1) // 2 - 1
        return range(first, min(last, len(argv) - 1) + 1, self.step)


def _key_spec(node: Arg, at: int | None, start: int, last_node: bool, option: _Option | None) -> KeySpec:
    """Return the spec of one key. ``option``: the argument before it, if that is an option at a fixed position. Raises
    ValueError if the key's position does not follow from the declaration."""
    access, last = tuple(node.access.split()), -1 if node.multiple else 0
    if node.multiple and not last_node:
        raise ValueError(f"key {node.name!r}: keys that repeat must be the last arguments")
    if node.token:
        return KeySpec(access, start, node.token, last, 1)
    if at is not None:
        return KeySpec(access, at, "", last, 1)
    if option is None:
        raise ValueError(f"key {node.name!r} has no fixed position and no token")
    token, position, words = option
    return KeySpec((*access, "incomplete"), position, "", last, 1, option=token, option_words=words)


def _option_at(node: Arg, at: int | None) -> _Option | None:
    size, fixed = node.words()
    return (node.token, at, size) if at is not None and node.optional and node.token and fixed else None


def _counted(node: Arg, at: int, start: int) -> Iterator[KeySpec]:
    """Yield the specs of keys whose number is the argument before them, at position ``at`` - 1. Raises ValueError."""
    width = 1 if node.type == "key" else count_words(node.children)[0]
    for spec in key_specs((node.with_(multiple=False),), at, start, end=False):
        if spec.index != at or spec.keyword:
            raise ValueError(f"{node.name!r}: counted keys must begin right after their number")
        yield KeySpec(spec.flags, at - 1, "", 0, width, counted=True)


def _is_halved(node: Arg) -> bool:
    """Return whether the node is like ``STREAMS key [key ...] id [id ...]``: keys, then as many other words."""
    if node.type != "block" or not node.token or len(node.children) != 2:
        return False
    first, second = node.children
    return first.type == "key" and first.multiple and second.type != "key" and second.multiple


def key_specs(args: Sequence[Arg], at: int | None, start: int, end: bool = True) -> Iterator[KeySpec]:
    """Yield the specs of the keys among ``args``, in the order of the tree. Raises ValueError.

    ``at``: the position of the first argument; None if the number of words before it is not fixed. ``start``: where the
    search for a keyword begins. ``end``: no arguments follow.
    """
    before = start  # words before those whose number is not fixed
    option: _Option | None = None
    for number, node in enumerate(args):
        size, fixed = node.words()
        last_node = end and number == len(args) - 1
        before = at if at is not None else before
        if last_node and _is_halved(node):
            yield KeySpec(tuple(node.children[0].access.split()), before, node.token or "", -1, 1, halved=True)
        elif number and args[number - 1].name == NUMKEYS and at is not None:
            yield from _counted(node, at, start)
        elif node.type == "key":
            yield _key_spec(node, at, start, last_node, option)
        elif node.type == "block" and node.multiple:
            width = count_words(node.children)[0]
            for spec in key_specs(node.children, at, start, end=False):
                if spec.keyword or not last_node:
                    raise ValueError(f"{node.name!r}: keys in a repeated block must be the last arguments")
                yield KeySpec(spec.flags, spec.index, "", -1, width)
        elif node.type == "block":
            yield from key_specs(node.children, at if node.token is None else None, start, last_node)
        elif node.type == "oneof":
            for child in node.children:
                yield from key_specs((child,), at if node.token is None else None, start, last_node)
        option = _option_at(node, at)
        if at is not None:
            at = at + size if fixed and not node.optional else None
