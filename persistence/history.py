"""The identity of the log: its replication ID and its previous IDs.

    replication      a text file, replaced by rename:
    +----------------------------------------------------------------------------------------------------+
    | tidelog replication, format 1                                                                      |
    | id 8d1c...                       40 hex digits: the ID of records that are logged from now on      |
    | previous 03fa... 4711            0 to 8 lines, newest first: a previous ID, and the log offset     |
    |                                  up to which its history is that of this log, which can still      |
    |                                  be shorter (a replica has the IDs of its leader)                  |
    | boot 1d009446-23f1-...           the machine's boot ID when a leader wrote this, or - for none      |
    | incomplete                       present until a replica has caught up once (Rule 3)                |
    | crc 0badcafe                     crc32 of all lines above, 8 hex digits                            |
    +----------------------------------------------------------------------------------------------------+

Rule 1: an ID and an offset identify one sequence of bytes. A server that may have logged bytes that differ from those
of others with the same ID takes a new ID before it logs more. So does a server that starts as leader with another boot
ID than that in this file, or if the file has none: the end of the log may be lost, or others may have continued with
the same ID.
Rule 2: a directory without this file is of the first version and has the ID of tidelog.format. The first start of a
later version writes the file. If the WAL has a note (see ``wal``), there was such a start.
Rule 3: the data of a replica is incomplete from its creation or from a full copy on until it has caught up with its
leader once. A member with incomplete data lacks entries that its leader has had for a while, so it must not lead.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

from persistence.directory import replace
from resp.errors import REMEDY, CorruptError

NAME = "replication"
FORMAT = "tidelog replication, format 1"
MOST_PREVIOUS = 8  # IDs
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TEXT = re.compile(
    r"id ([0-9a-f]{40})\n((?:previous [0-9a-f]{40} \d{1,19}\n){0,8})boot (-|[0-9a-zA-Z-]{1,64})\n(incomplete\n)?",
    re.ASCII,
)


def boot_id() -> str:
    """Return an ID that changes with each boot of the machine; "" if the system has none."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


@dataclass(slots=True)
class History:
    """The replication IDs of one log; offsets are log offsets."""

    id: str  # 40 hex digits
    previous: list[tuple[str, int]] = field(default_factory=list)  # newest first: ID, offset up to which it holds
    boot: str = ""  # boot ID of the machine when this was last saved; "" if unknown
    complete: bool = True  # see Rule 3
    saved: bool = field(default=False, compare=False)  # whether there is a file

    def covers(self, replid: str, offset: int, end: int) -> bool:
        """Return whether a log with this ID and end ``offset`` is a prefix of this one, which ends at ``end``."""
        if not 0 <= offset <= end:
            return False
        return replid == self.id or any(replid == name and offset <= valid for name, valid in self.previous)

    def points(self, end: int) -> dict[str, int]:
        """Return the log offset up to which the history of each ID is that of this log, which ends at ``end``. The
        current ID is the first."""
        return {self.id: end, **{name: min(valid, end) for name, valid in reversed(self.previous)}}

    @property
    def ids(self) -> frozenset[str]:
        """The current ID and the previous IDs."""
        return frozenset([self.id, *(name for name, _ in self.previous)])

    def shift(self, offset: int, replid: str = "") -> None:
        """Take a new ID for records from ``offset`` on: ``replid``, or a random one. The data is complete, because it
        defines the new history."""
        self._renew(replid or secrets.token_hex(20), offset)
        self.complete = True

    def follow(self, replid: str, offset: int, points: Mapping[str, int] | None = None) -> None:
        """Adopt the leader's new ID. This log ends at ``offset`` and is the beginning of the leader's log.

        ``points``: what points() of the leader returned. Without the leader's previous IDs, this server could later, as
        a leader, require another server to delete records under such an ID although both have these records.
        """
        if replid == self.id:
            return
        self._renew(replid, offset)
        ends = dict(self.previous)  # the own previous ID remains the first
        for name, end in (points or {}).items():
            if name != replid:
                ends[name] = max(end, ends.get(name, 0))
        first, *rest = ends.items()
        self.previous = [first, *sorted(rest, key=lambda pair: -pair[1])][:MOST_PREVIOUS]

    def _renew(self, replid: str, offset: int) -> None:
        # The previous ID can be valid beyond ``offset`` if the machine failed and the end of the log was lost.
        kept = [(self.id, offset), *((name, min(valid, offset)) for name, valid in self.previous)]
        self.id, self.previous = replid, [pair for pair in kept if pair[0] != replid][:MOST_PREVIOUS]

    def ask(self, offset: int) -> str:
        """Return the ID to request from a leader: the previous one while nothing was logged under the current one."""
        return self.previous[0][0] if self.previous and self.previous[0][1] == offset else self.id

    @classmethod
    def load(cls, directory: Path, identity: str) -> History:
        """Read the file in a directory whose tidelog.format has the ID ``identity``. Raises CorruptError, OSError."""
        path = directory / NAME
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return cls(identity)
        first, _, rest = raw.decode("utf-8", errors="replace").partition("\n")
        if first != FORMAT:
            if re.fullmatch(r"tidelog replication, format \d+", first, re.ASCII):
                raise CorruptError(f"{path}: says '{first}', which this tidelog does not know: start the newer one")
            raise CorruptError(f"{path}: damaged: {REMEDY}")
        lines, _, crc = rest.rpartition("crc ")
        found = TEXT.fullmatch(lines)
        if found is None or crc != f"{crc32(raw[: -len(crc) - 4]):08x}\n":
            raise CorruptError(f"{path}: damaged: {REMEDY}")
        replid, previous, boot, incomplete = found.groups()
        pairs = [line.split()[1:] for line in previous.splitlines()]
        known = [(name, int(valid)) for name, valid in pairs]
        return cls(replid, known, "" if boot == "-" else boot, not incomplete, saved=True)

    def save(self, directory: Path, leads: bool = True) -> None:
        """Replace and sync the file. Raises OSError, ValueError (load() would refuse it); the old file then stays.

        ``leads``: record the machine's boot ID. A replica records none and takes a new ID if it later starts as leader.
        """
        boot = boot_id() if leads else ""
        lines = [FORMAT, f"id {self.id}", *(f"previous {name} {valid}" for name, valid in self.previous)]
        text = "\n".join([*lines, f"boot {boot or '-'}", *([] if self.complete else ["incomplete"]), ""])
        if TEXT.fullmatch(text.partition("\n")[2]) is None:
            raise ValueError(f"no replication IDs: {self.id!r}, {self.previous!r}")
        replace(directory / NAME, f"{text}crc {crc32(text.encode()):08x}\n")
        self.boot, self.saved = boot, True
