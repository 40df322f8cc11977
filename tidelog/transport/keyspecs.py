"""Which arguments of a command are keys, and how a command is sent to several members: from the reply of COMMAND.

A command has *key specifications* and *tips*, which Redis defines. For example, MGET:

    begin_search: index 1; find_keys: range, last key -1, step 1    all arguments from the first one are keys
    request_policy:multi_shard                                      the keys may be divided among several members
    response_policy:agg_sum (DEL)                                   the result is the sum of the replies

Rule 1: the server's declarations are the only source. Exceptions are commands whose keys these specifications can't
        describe (OWN), and the names of channels, which are routed like keys.
Rule 2: ``keys`` returns None if only the server knows the keys (COMMAND GETKEYS).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidelog.transport.call import Value
from tidelog.transport.slots import key_bytes

_CHANNELS: Final = frozenset({b"publish", b"spublish"})
#: Commands that read several streams, and change nothing: each member can be asked for its own streams.
_READS: Final = frozenset({b"twait", b"xread"})


@dataclass(frozen=True, slots=True)
class FoundKeys:
    """The keys of a call."""

    at: tuple[int, ...]  # positions of the keys in the arguments
    width: int = 1  # arguments that belong to each key: itself and those after it
    partner: int = 0  # distance from a key to a further argument that belongs to it, 0 = none

    def words(self, position: int) -> list[int]:
        """Return the positions of a key and of the arguments that belong to it."""
        own = list(range(position, position + self.width))
        return [*own, position + self.partner] if self.partner else own


class _Search:
    """One key specification."""

    def __init__(self, spec: Any) -> None:
        fields = mapping(spec)
        begin, find = mapping(fields[b"begin_search"]), mapping(fields[b"find_keys"])
        self._begin, self._find = mapping(begin[b"spec"]), mapping(find[b"spec"])
        self._kinds = begin[b"type"], find[b"type"]
        self.partial = b"incomplete" in fields[b"flags"] or b"unknown" in self._kinds

    def find(self, args: Sequence[Value]) -> FoundKeys:
        first = self._first(args)
        if first is None or first >= len(args):
            return FoundKeys(())
        if self._kinds[1] == b"keynum":
            step: int = self._find[b"keystep"]
            start = first + int(self._find[b"firstkey"])
            number = int(args[first + self._find[b"keynumidx"]])
            return FoundKeys(tuple(range(start, min(start + number * step, len(args)), step)), step)
        last, step, limit = (self._find[name] for name in (b"lastkey", b"keystep", b"limit"))
        if last >= 0:
            return FoundKeys(tuple(range(first, min(first + last + 1, len(args)), step)), step)
        end, partner = len(args) + last + 1, 0
        if limit > 1:  # the keys are the first part of the rest, and each has an argument in the second one
            partner = (end - first) // limit
            end = first + partner
        return FoundKeys(tuple(range(first, end, step)), step, partner)

    def _first(self, args: Sequence[Value]) -> int | None:
        if self._kinds[0] == b"index":
            index: int = self._begin[b"index"]
            return index
        wanted, start = self._begin[b"keyword"].upper(), self._begin[b"startfrom"]
        words = range(start, len(args)) if start > 0 else range(len(args) + start, 0, -1)
        return next((at + 1 for at in words if _upper(args[at]) == wanted), None)


@dataclass(frozen=True, slots=True)
class CommandKeys:
    """What routing needs to know about one command."""

    name: bytes
    searches: tuple[_Search, ...]
    partial: bool  # whether the specifications do not describe all keys
    request: str  # the request policy, "" without one
    response: str  # the response policy, "" without one

    @property
    def divisible(self) -> bool:
        """Whether the call can be divided among several members by its keys."""
        return self.name in _READS or (self.request == "multi_shard" and b"keynum" not in self._finds)

    @property
    def reads_streams(self) -> bool:
        """Whether the call waits for streams, and members may be asked at the same time."""
        return self.name in _READS

    @property
    def _finds(self) -> set[bytes]:
        return {search._kinds[1] for search in self.searches}

    def keys(self, args: Sequence[Value]) -> FoundKeys | None:
        """Return the keys of a call; None if only the server knows them."""
        own = OWN.get(self.name)
        if own is not None:
            return own(args)
        if self.partial:
            return None
        if len(self.searches) == 1:
            return self.searches[0].find(args)
        return FoundKeys(tuple(sorted({at for search in self.searches for at in search.find(args).at})))


class CommandTable:
    """The commands of a server, read from the reply of COMMAND."""

    def __init__(self, reply: Iterable[Any]) -> None:
        """Raises ValueError, TypeError, KeyError, IndexError for a reply of another form."""
        self._commands: dict[bytes, CommandKeys | None] = {}
        for row in reply:
            self._add(row)
        for name in _CHANNELS & self._commands.keys():
            self._commands[name] = CommandKeys(name, (), False, "", "")

    def _add(self, row: Any) -> None:
        name = row[0].lower()
        inner = row[9] if len(row) > 9 else ()
        for each in inner:
            self._add(each)
        if inner:
            self._commands[name] = None  # the second word is part of the name
            return
        searches = tuple(map(_Search, row[8] if len(row) > 8 else ()))
        tips = [tip.decode().partition(":") for tip in (row[7] if len(row) > 7 else ())]
        policies = {kind: value for kind, _, value in tips}
        self._commands[name] = CommandKeys(
            name, searches, any(search.partial for search in searches),
            policies.get("request_policy", ""), policies.get("response_policy", ""),
        )  # fmt: skip

    def of(self, args: Sequence[Value]) -> CommandKeys | None:
        """Return the command of a call; None if the server does not have it."""
        name = _lower(args[0])
        found = self._commands.get(name)
        if found is None and len(args) > 1 and name in self._commands:
            return self._commands.get(b"%s|%s" % (name, _lower(args[1])))
        return found


def _twait(args: Sequence[Value]) -> FoundKeys:
    if _upper(args[2] if len(args) > 2 else b"") == b"GROUP":
        return FoundKeys(tuple(range(4, len(args))))
    return FoundKeys(tuple(range(2, len(args), 2)), 2)


def _tpublish(args: Sequence[Value]) -> FoundKeys:
    stages = 5 if len(args) > 3 and _upper(args[3]) == b"CHECK" else 3
    return FoundKeys((1, *range(stages, len(args))))


def _channel(args: Sequence[Value]) -> FoundKeys:  # noqa: ARG001 - the signature of OWN
    return FoundKeys((1,))


OWN: Final[dict[bytes, Callable[[Sequence[Value]], FoundKeys]]] = {
    b"twait": _twait, b"tpublish": _tpublish, **dict.fromkeys(_CHANNELS, _channel),
}  # fmt: skip


def mapping(value: Any) -> dict[bytes, Any]:
    """Return a map of RESP3, or its form in RESP2, as a dict."""
    return value if isinstance(value, dict) else dict(zip(value[::2], value[1::2], strict=True))


def _upper(word: Value) -> bytes:
    return key_bytes(word).upper()


def _lower(word: Value) -> bytes:
    return key_bytes(word).lower()
