"""A replica introduces itself to its leader: requests and replies as bytes, no I/O.

    replica                                   leader
    PING                                      +PONG        (or -NOAUTH: then AUTH must do)
    AUTH [user] password                      +OK          where masterauth is set
    REPLCONF tidelog 1                        +OK          a redis-server answers with an error: it can't be followed
    REPLCONF listening-port 6380              +OK          what the leader shows in INFO
    REPLCONF ip-address 10.0.0.2              +OK          where replica-announce-ip is set
    REPLCONF history 4711:2864434397          +OK          crc32 of this log's bytes from 4711 to where it ends; twice
                                                           (history 4711:... history 123:...) where more is held
    PSYNC <replication ID> <offset>           +CONTINUE <ID>             frames follow, batches from that offset on
                                              +FULLRESYNC <ID> <offset>  frames follow, a full copy first

``offset`` is the log offset: bytes of records that the replica has. ``PSYNC ? -1`` asks for a full copy. ``PSYNC <ID>
<offset> FAILOVER`` comes from a leader that hands over: who gets it becomes the leader, then answers. ``history`` lets
the leader see that a log of the right ID and length is nevertheless another one (a directory from a backup).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from replication.frames import LinkError

VERSION = 1  # of the link: requests and frames
LONGEST_LINE = 4096  # bytes of a reply
ID_LENGTH = 40


class RefusedError(LinkError):
    """The leader understood, and said no."""


@dataclass(slots=True)
class Introduction:
    """Who the replica is and what it has."""

    replid: str  # "?" for whoever wants a full copy
    offset: int  # -1 with "?"
    port: int
    announce_ip: str = ""
    user: str = ""
    password: bytes = b""
    history: tuple[int, int] | None = None  # start and crc32 of the last piece of its log
    failover: bool = False
    longer: tuple[int, int] | None = None  # the same of a longer one


@dataclass(slots=True)
class Answer:
    """What the leader said to PSYNC."""

    replid: str
    offset: int  # of the copy to come; -1: no copy, go on


def request(*words: bytes | str | int) -> bytes:
    """A command as RESP."""
    raw = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"".join([b"*%d\r\n" % len(raw), *[b"$%d\r\n%b\r\n" % (len(word), word) for word in raw]])


class Handshake:
    """Use: send ``start()``, then whatever ``feed()`` returns, until ``answer`` is there."""

    def __init__(self, who: Introduction) -> None:
        self._steps = list(_steps(who))
        self._at = 0
        self._buffer = b""
        self.answer: Answer | None = None
        self.rest = b""  # what came behind the answer: the first frames

    def start(self) -> bytes:
        return self._steps[0][1]

    def feed(self, data: bytes) -> bytes:
        """Bytes from the leader; returns what to send next. Raises LinkError."""
        self._buffer += data
        out = b""
        while self.answer is None:
            line, found, rest = self._buffer.partition(b"\n")
            if not found:
                if len(line) > LONGEST_LINE:
                    raise LinkError("the leader's reply has no end: it is no tidelog server")
                return out
            self._buffer = rest
            line = line.removesuffix(b"\r")
            if line:  # an empty one is Redis's sign of life while it prepares
                out += self._took(line)
        self.rest, self._buffer = self._buffer, b""
        return out

    def _took(self, line: bytes) -> bytes:
        step = self._steps[self._at][0]
        text = line.decode("utf-8", "replace")
        if step == "PSYNC":
            self.answer = _answer(text)
            return b""
        if not text.startswith("+"):
            self._refused(step, text)
        self._at += 1
        return self._steps[self._at][1]

    def _refused(self, step: str, text: str) -> None:
        """Raises LinkError, unless the next step may put it right."""
        if not text.startswith("-"):
            raise LinkError(f"the leader answered {step} with {text[:100]!r}: it is no tidelog server")
        if step == "PING" and text.startswith(("-NOAUTH", "-NOPERM")) and self._steps[1][0] == "AUTH":
            return
        said = text[1:200]
        if step == "REPLCONF tidelog":
            raise RefusedError(f"the leader is no tidelog server, it can't be followed (it said: {said})")
        if said.startswith("NOAUTH"):
            raise RefusedError(f"the leader wants a password: set masterauth (it said: {said})")
        if step == "AUTH":
            raise RefusedError(f"the leader refuses masterauth (it said: {said})")
        raise RefusedError(f"the leader refuses {step} (it said: {said})")


def _steps(who: Introduction) -> Iterator[tuple[str, bytes]]:
    """What is asked for, and the request."""
    yield "PING", request("PING")
    if who.password:
        yield "AUTH", request("AUTH", *([who.user] if who.user else []), who.password)
    yield "REPLCONF tidelog", request("REPLCONF", "tidelog", VERSION)
    yield "REPLCONF listening-port", request("REPLCONF", "listening-port", who.port)
    if who.announce_ip:
        yield "REPLCONF ip-address", request("REPLCONF", "ip-address", who.announce_ip)
    if who.history is not None:
        pieces = [piece for piece in (who.history, who.longer) if piece is not None]
        words = [word for piece in pieces for word in ("history", "{}:{}".format(*piece))]
        yield "REPLCONF history", request("REPLCONF", *words)
    yield "PSYNC", request("PSYNC", who.replid, who.offset, *(["FAILOVER"] if who.failover else []))


def _answer(text: str) -> Answer:
    words = text.split()
    try:
        if words[0] == "+CONTINUE" and len(words) == 2 and len(words[1]) == ID_LENGTH:
            return Answer(words[1], -1)
        if words[0] == "+FULLRESYNC" and len(words) == 3 and len(words[1]) == ID_LENGTH and int(words[2]) >= 0:
            return Answer(words[1], int(words[2]))
    except (IndexError, ValueError):
        pass
    raise RefusedError(f"the leader answered PSYNC with: {text.removeprefix('-')[:200]}")
