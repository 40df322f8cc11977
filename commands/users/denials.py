"""ACL LOG: the latest calls and logins that were denied, newest first.

Rule 1: no clock is read here.
Rule 2: memory is bounded: the number of entries is limited, and names from clients are truncated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# a denial that equals one of the latest increments its count if that entry is not older than this
SAME_MS: Final = 60_000
COMPARED: Final = 10  # how many of the latest entries are compared
ENTRY_BYTES: Final = 1000  # memory of an entry
LONGEST: Final = 1024  # maximum size of a user name, key, channel or CLIENT LIST line in an entry


@dataclass(slots=True)
class DenialEntry:
    """A denial, and how often it was repeated."""

    number: int  # 0, 1, ...
    reason: str  # auth, command, key, channel
    context: str  # toplevel, multi
    what: bytes  # the command (as sent, for a login), the key or the channel
    user: bytes
    client: str  # the CLIENT LIST line of the latest one
    created: int  # ms since epoch
    updated: int  # ms since epoch
    count: int = 1


class Denials:
    """The log. ``longest``: maximum number of entries (acllog-max-len)."""

    def __init__(self, longest: int = 128) -> None:
        self._entries: list[DenialEntry] = []
        self._next = 0
        self._longest = longest
        self.counts: dict[str, int] = {}  # counts since the start, or CONFIG RESETSTAT
        self.reset_counts()

    def reset_counts(self) -> None:
        self.counts = {"auth": 0, "command": 0, "key": 0, "channel": 0}

    def resize(self, longest: int) -> None:
        self._longest = longest
        del self._entries[longest:]

    def note(self, reason: str, context: str, what: bytes, user: bytes, client: str, now: int) -> None:
        """Record a denial. ``now``: ms since epoch."""
        self.counts[reason] += 1
        what, user, client = what[:LONGEST], user[:LONGEST], client[:LONGEST]
        for at, old in enumerate(self._entries[:COMPARED]):
            if (old.reason, old.context, old.what, old.user) == (reason, context, what, user) and (
                now - old.updated <= SAME_MS
            ):
                old.client, old.updated = client, now
                old.count += 1
                self._entries.insert(0, self._entries.pop(at))
                return
        self._entries.insert(0, DenialEntry(self._next, reason, context, what, user, client, now, now))
        self._next += 1
        del self._entries[self._longest :]

    def entries(self) -> list[DenialEntry]:
        """Return the entries, newest first."""
        return list(self._entries)

    def memory_bytes(self) -> int:
        """Return the approximate memory of the entries in bytes."""
        return ENTRY_BYTES * len(self._entries)

    def reset(self) -> None:
        """Remove all entries. The numbering continues."""
        self._entries.clear()
