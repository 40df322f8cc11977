"""The handshake of a replica with its leader: requests and replies as bytes, no I/O.

    replica                                   leader
    PING                                      +PONG        (or -NOAUTH; then AUTH must succeed)
    AUTH [user] password                      +OK          if masterauth is set
    REPLCONF tidelog 1 capa format-2          +OK <end> <ID>:<offset>...   the leader's history, see ``Lineage``; a
                                                           redis-server replies with an error and can't be followed;
                                                           earlier leaders ignore any capa, see ``formats``, and
                                                           reply only +OK
      with data in its store also capa delta               see ``persistence.noderuns``
      with cluster-enabled also capa node-...              see ``members``
      in a server group also capa group-...                see ``members``
      also capa repair                                     it answers requests for nodes, see ``nodes``
      with tier-url also capa tier                         it compares its store with the leader's history
    REPLCONF listening-port 6380              +OK [owner]  the leader shows it in INFO; owner: after capa tier, the ID
                                                           that owns the leader's history, 40 hex digits
    REPLCONF ip-address 10.0.0.2              +OK          if replica-announce-ip is set
    REPLCONF history 4711:2864434397          +OK          crc32 of this log's bytes from offset 4711 to its end; twice
                                                           (history 4711:... history 123:...) if the log holds more
    REPLCONF rdb-only 1                       +OK          from a backup: it takes a full copy and is not a replica;
                                                           with capa continuous see ``backupfeed``, and with capa
                                                           whole see ``wholecopy``
    PSYNC <replication ID> <offset>           +CONTINUE <ID>             frames follow, batches from that offset on
                                              +FULLRESYNC <ID> <offset>  frames follow, a full copy first
                                              +FULLRESYNC <ID> <offset> DELTA  the same; the replica reports its nodes
    REPLCONF nodes <runs>                     (none)       after each frame REPORT; no runs: it has reported all
    REPLCONF getnode, givenode                (none)       at any time after PSYNC, see ``nodes``
    REPLCONF damaged 1, or 0                  (none)       in a server group: whether its store is damaged, before the
                                                           next acknowledgement

``offset`` is the log offset, which is the number of bytes of records that the replica has. ``PSYNC ? -1`` requests a
full copy. ``PSYNC <ID> <offset> FAILOVER`` is sent by a leader that hands over: the server that receives it becomes the
leader and then answers. ``history`` lets the leader detect a log that differs although its ID and length are right,
such as that of a directory that was restored from a backup.

Rule 1: a replica with data does not request a full copy from a leader whose history is shorter than its own data and
has no ID in common with it. Such a leader has probably started with an empty or a foreign directory, and the copy would
delete the data. The replica takes the copy only if the operator demands it.
Rule 2: a replica whose log diverged from the leader's, such as that of a former leader, asks to continue from the point
where they diverged, if its log can be rewound to it. It deletes the records after it only after the leader has agreed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from replication.formats import CAPA, FORMAT
from replication.frames import LinkError
from replication.members import ClusterMember, GroupAnnouncement, capability
from replication.nodes import REPAIR

VERSION = 1  # version of the link protocol: requests and frames
DELTA = b"delta"  # a capability: the replica has nodes and can report them (persistence.noderuns)
TIER = b"tier"  # a capability: the replica needs to know who owns the leader's history
LONGEST_LINE = 4096  # maximum size of a reply, including its line feed
MOST_EMPTY = 1000  # maximum empty lines before a reply
# Exactly what a leader sends: the ID becomes part of the file ``replication``, and the offset that of the log.
LINEAGE = re.compile(r"(?:0|[1-9][0-9]{0,17})(?: [0-9a-f]{40}:(?:0|[1-9][0-9]{0,17})){1,50}", re.ASCII)
OWNED = re.compile(r"\+OK ([0-9a-f]{40})")
ANSWER = re.compile(r"\+(?:CONTINUE ([0-9a-f]{40})|FULLRESYNC ([0-9a-f]{40}) (0|[1-9][0-9]{0,17})( DELTA)?)")


class ReplicationRefusedError(LinkError):
    """Raised if the leader understood the request and refused it."""


class ShorterHistoryError(LinkError):
    """Raised if a full copy would replace this server's data with less data of an unrelated history (Rule 1)."""


@dataclass(slots=True)
class Lineage:
    """The history of a server's data."""

    end: int  # log offset; 0 if there are no keys
    points: dict[str, int]  # the replication ID, then the previous IDs, newest first, with the offsets of their ends

    @property
    def current(self) -> str:
        return next(iter(self.points))

    def related(self, other: Lineage) -> bool:
        """Return whether both have an ID in common."""
        return not self.points.keys().isdisjoint(other.points)

    def diverged(self, leader: Lineage) -> tuple[str, int] | None:
        """Return the last point that both histories have in common, and an ID that both have there.

        Returns None if they have none in common, or if this one is only longer: the leader may not have its end yet.
        """
        common = [(min(end, leader.points[name]), name) for name, end in self.points.items() if name in leader.points]
        if not common:
            return None
        offset, name = max(common)
        if name == leader.current and offset < self.points[name]:
            return None
        return name, offset

    def encode(self) -> bytes:
        return b" ".join([b"%d" % self.end, *(b"%b:%d" % (name.encode(), end) for name, end in self.points.items())])

    @classmethod
    def decode(cls, text: str) -> Lineage | None:
        """Parse what a leader has replied after ``OK``. Returns None if it is empty. Raises LinkError."""
        if not text:
            return None
        if LINEAGE.fullmatch(text) is None:
            raise LinkError(f"the leader describes its history as {text[:100]!r}")
        end, *points = text.split(" ")
        return cls(int(end), {point[:40]: int(point[41:]) for point in points})


@dataclass(slots=True)
class Introduction:
    """The identity and the state of a replica."""

    replid: str  # "?" requests a full copy
    offset: int  # -1 with "?"
    port: int
    announce_ip: str = ""
    user: str = ""
    password: bytes = b""
    history: tuple[int, int] | None = None  # start offset and crc32 of the end of its log
    failover: bool = False
    longer: tuple[int, int] | None = None  # the same for a longer part of the end
    member: ClusterMember | None = None  # how it announces itself to clients; None: cluster-enabled is no
    delta: bool = False  # this server has nodes in its store, and reports them for a copy
    lineage: Lineage | None = None  # None: unknown, or this server's log is known to be wrong
    keeps: bool = False  # Rule 1 applies
    # Rule 2: returns start offset and crc32 of the last bytes before a log offset; None if the log can't end there
    rewind: Callable[[int], tuple[int, int] | None] | None = None
    rewound: bool = False  # ``offset`` is that of Rule 2
    group: GroupAnnouncement | None = None  # as which member of a server group; None: of none
    tier: bool = False  # tier-url is set


@dataclass(slots=True)
class PsyncAnswer:
    """The leader's answer to PSYNC."""

    replid: str
    offset: int  # log offset of the full copy that follows; -1: no copy, batches follow
    delta: bool = False  # the leader requests a report of this server's nodes during the copy


def request(*words: bytes | str | int) -> bytes:
    """Return a command in RESP."""
    raw = [word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogateescape") for word in words]
    return b"".join([b"*%d\r\n" % len(raw), *[b"$%d\r\n%b\r\n" % (len(word), word) for word in raw]])


class Handshake:
    """The handshake. Usage: send the result of start(), then each result of feed(), until ``answer`` is set."""

    def __init__(self, who: Introduction) -> None:
        self._steps = list(_steps(who))
        self._credentials = f"masterauth for masteruser {who.user!r}" if who.user else "masterauth"
        self._who = who
        self._at = 0
        self._buffer = b""
        self._empty = 0  # number of lines since the last reply
        self.leader: Lineage | None = None  # None: the leader is of an earlier version, or has not replied yet
        self.owner = ""  # the ID that owns the leader's history; "": the leader has not sent it
        self.answer: PsyncAnswer | None = None
        self.rest = b""  # bytes after the answer: the first frames

    def start(self) -> bytes:
        return self._steps[0][1]

    def feed(self, data: bytes) -> bytes:
        """Process bytes from the leader; return the next bytes to send. Raises LinkError."""
        buffer = self._buffer + data
        out, at = b"", 0
        while self.answer is None:
            end = buffer.find(b"\n", at, at + LONGEST_LINE)
            if end < 0:
                if len(buffer) - at >= LONGEST_LINE:
                    raise LinkError("the leader's reply has no end: it is not a tidelog server")
                break
            line = buffer[at:end].removesuffix(b"\r")
            at = end + 1
            if line:
                out += self._reply(line)
                self._empty = 0
            else:  # Redis sends it as a keepalive while it prepares a copy
                self._empty += 1
                if self._empty > MOST_EMPTY:
                    raise LinkError("the leader sends empty lines instead of a reply: it is not a tidelog server")
        if self.answer is None:
            self._buffer = buffer[at:]
        else:
            self.rest, self._buffer = buffer[at:], b""
        return out

    def _reply(self, line: bytes) -> bytes:
        """Process the reply to the current step; return the next request. Raises LinkError."""
        step = self._steps[self._at][0]
        text = line.decode("utf-8", "replace")
        if step == "PSYNC" and not text.startswith("-NOPERM"):
            self.answer = read_answer(text)
            return b""
        if not text.startswith("+"):
            self._refused(step, text)
        if step == "REPLCONF tidelog":
            self.leader = Lineage.decode(text.removeprefix("+OK").removeprefix(" "))
            if self.leader is not None and self._who.lineage is not None:
                self._compare(self.leader, self._who.lineage)
        if step == "REPLCONF listening-port":
            owned = OWNED.fullmatch(text)
            self.owner = "" if owned is None else owned[1]
        self._at += 1
        return self._steps[self._at][1]

    def _compare(self, leader: Lineage, own: Lineage) -> None:
        """Apply Rule 2. Raises ShorterHistoryError if a full copy would violate Rule 1."""
        who = self._who
        if who.keeps and leader.end < own.end and not leader.related(own):
            raise ShorterHistoryError(
                f"a full copy is refused: the leader's history is not that of this server's data (log offset {own.end})"
                " and is shorter. Has the leader started with the wrong directory? To replace this server's data,"
                " send REPLICAOF host port FORCE"
            )
        point = own.diverged(leader)
        if point is None or who.rewind is None:
            return
        if point[1] == who.offset:
            who.replid = point[0]  # an ID that the leader knows, also after a crash right after the log was rewound
        else:
            piece = who.rewind(point[1])
            if piece is None:
                return
            who.replid, who.offset = point
            who.history, who.longer, who.rewound = piece, None, True
        self._steps = list(_steps(who))

    def _refused(self, step: str, text: str) -> None:
        """Raise LinkError, unless the next step may resolve the refusal."""
        if not text.startswith("-"):
            raise LinkError(f"the leader answered {step} with {text[:100]!r}: it is not a tidelog server")
        if step == "PING" and text.startswith(("-NOAUTH", "-NOPERM")) and self._steps[1][0] == "AUTH":
            return
        said = text[1:200]
        if said.startswith("NOPERM"):
            raise ReplicationRefusedError(
                f"the leader's user may not replicate: it needs +psync +replconf +ping (reply: {said})"
            )
        if step == "REPLCONF tidelog" and not said.startswith("LOADING"):
            raise ReplicationRefusedError(f"the leader is not a tidelog server and can't be followed (reply: {said})")
        if said.startswith("NOAUTH"):
            raise ReplicationRefusedError(f"the leader requires a password: set masterauth (reply: {said})")
        if step == "AUTH":
            raise ReplicationRefusedError(f"the leader refuses {self._credentials} (reply: {said})")
        raise ReplicationRefusedError(f"the leader refuses {step} (reply: {said})")


def _steps(who: Introduction) -> Iterator[tuple[str, bytes]]:
    """Yield the steps of the handshake: a name for messages, and the request."""
    yield "PING", request("PING")
    if who.password:
        yield "AUTH", request("AUTH", *([who.user] if who.user else []), who.password)
    capabilities: list[bytes | str | int] = ["capa", b"%b%d" % (CAPA, FORMAT), "capa", REPAIR]
    if who.member is not None:
        capabilities += ["capa", capability(who.member)]
    if who.delta:
        capabilities += ["capa", DELTA]
    if who.group is not None:
        capabilities += ["capa", who.group.capability()]
    if who.tier:
        capabilities += ["capa", TIER]
    yield "REPLCONF tidelog", request("REPLCONF", "tidelog", VERSION, *capabilities)
    yield "REPLCONF listening-port", request("REPLCONF", "listening-port", who.port)
    if who.announce_ip:
        yield "REPLCONF ip-address", request("REPLCONF", "ip-address", who.announce_ip)
    if who.history is not None:
        pieces = [piece for piece in (who.history, who.longer) if piece is not None]
        words = [word for piece in pieces for word in ("history", "{}:{}".format(*piece))]
        yield "REPLCONF history", request("REPLCONF", *words)
    yield "PSYNC", request("PSYNC", who.replid, who.offset, *(["FAILOVER"] if who.failover else []))


def read_answer(text: str) -> PsyncAnswer:
    """Parse the answer to PSYNC, a line without its end. Raises ReplicationRefusedError."""
    found = ANSWER.fullmatch(text)
    if found is None:
        raise ReplicationRefusedError(f"the leader answered PSYNC with: {text.removeprefix('-')[:200]}")
    continued, copied, offset, delta = found.groups()
    return PsyncAnswer(continued, -1) if continued else PsyncAnswer(copied, int(offset), bool(delta))
