"""The options of XADD and XTRIM.

    XADD key [NOMKSTREAM] [KEEPREF | DELREF | ACKED] [IDMPAUTO producer | IDMP producer its-id] [trim] <* | id>
         field value ...
    XTRIM key [KEEPREF | DELREF | ACKED] trim                          trim: MAXLEN | MINID [= | ~] threshold [LIMIT n]

As in Redis, they can be in any order.
"""

from __future__ import annotations

from typing import Final

from commands.context import Context
from commands.declare import arg, block, oneof, opt, token
from commands.parse import integer
from commands.redis_streams.ids import added_id, strict_id
from resp import errors
from resp.errors import CommandError
from storage.keyspace.keyspace import Keyspace

REFERENCES: Final = oneof("condition", token("KEEPREF"), token("DELREF"), token("ACKED"))
_EXACTLY: Final = (opt(token("=", "equal")), arg("threshold"))
_ABOUT: Final = (token("~", "approximately"), arg("threshold"), opt(arg("count", "integer", token="LIMIT")))
MAXLEN_OR_MINID: Final = block(
    "trim", oneof("strategy", token("MAXLEN"), token("MINID")),
    oneof("how", block("exactly", *_EXACTLY), block("about", *_ABOUT)),
)  # fmt: skip

PRODUCER: Final = oneof(
    "idmp", block("automatic", token("IDMPAUTO"), arg("producer-id")),
    block("given", token("IDMP"), arg("producer-id"), arg("idempotent-id")),
)  # fmt: skip

NODES_AT_ONCE: Final = 100  # full nodes that ~ evicts without a LIMIT
MOST_AT_ONCE: Final = 1_000_000  # entries that ~ evicts without a LIMIT
NO_LIMIT: Final = 1 << 62

NONE: Final = 0
MAXLEN: Final = 1
MINID: Final = 2


class AddTrimOptions:
    """The options of XTRIM and XADD."""

    __slots__ = (
        "approximate", "auto", "id_at", "iid", "limit", "make", "ms", "producer", "references", "seq", "strategy",
        "threshold",
    )  # fmt: skip

    def __init__(self, ctx: Context, argv: list[bytes], adds: bool) -> None:
        """Parse the options. ``adds``: they are XADD's, which end before the ID. Raises CommandError."""
        self.id_at = len(argv)  # index of XADD's ID; the end if there is no ID
        self.auto = False  # the server assigns the ID
        self.ms = self.seq = 0  # the ID argument; seq is -1 for the next ID of that millisecond
        self.producer = b""  # the producer, of IDMP and IDMPAUTO; empty: neither
        self.iid = b""  # the producer's own ID of the entry; empty with IDMPAUTO
        self.make = True  # create a missing stream
        self.strategy = NONE
        self.threshold = 0  # the number of entries to retain, or the lowest ID to retain
        self.approximate = False
        self.limit = NO_LIMIT  # maximum number of entries to evict
        self.references = b""  # KEEPREF, DELREF, ACKED, or empty
        limit = self._parse(argv, adds)
        if self.producer and not self.auto:
            raise CommandError(errors.IDMP_WITH_ID)
        self._set_limit(ctx, limit, adds)

    def _parse(self, argv: list[bytes], adds: bool) -> int:
        """Parse everything except the LIMIT, which is returned; -1: none."""
        at, end, limit = 2, len(argv), -1
        while at < end:
            word, left = argv[at].upper(), end - at - 1
            if adds and word == b"*":
                self.id_at = at
                self.auto = True
                break
            if left and (word == b"MAXLEN" or word == b"MINID"):
                at += self._threshold(word, argv, at)
            elif left and word == b"LIMIT":
                limit = integer(argv[at + 1])
                if limit < 0:
                    raise CommandError(errors.BAD_LIMIT)
                at += 2
            elif (word == b"KEEPREF" or word == b"DELREF" or word == b"ACKED") and not self.references:
                self.references = word
                at += 1
            elif adds and word == b"NOMKSTREAM":
                self.make = False
                at += 1
            elif adds and left and (word == b"IDMPAUTO" or (word == b"IDMP" and left > 1)):
                at += self._take_producer(word, argv, at)
            elif adds:
                self.ms, self.seq = added_id(word)
                self.id_at = at
                break
            else:
                raise errors.syntax()
        return limit

    def _take_producer(self, word: bytes, argv: list[bytes], at: int) -> int:
        """Parse IDMP or IDMPAUTO at ``at``. Returns how many words it has."""
        if self.producer:
            raise CommandError(errors.TWO_PRODUCERS)
        self.producer = argv[at + 1]
        if not self.producer:
            raise errors.no_producer(word)
        if word == b"IDMPAUTO":
            return 2
        self.iid = argv[at + 2]
        if not self.iid:
            raise CommandError(errors.NO_IDEMPOTENT_ID)
        return 3

    def _threshold(self, word: bytes, argv: list[bytes], at: int) -> int:
        """Parse MAXLEN or MINID at ``at``. Returns how many words it has."""
        if self.strategy:
            raise CommandError(errors.TWO_STRATEGIES)
        words = 2
        if at + 2 < len(argv) and argv[at + 1] in (b"~", b"="):
            self.approximate = argv[at + 1] == b"~"
            words = 3
        text = argv[at + words - 1]
        if word == b"MAXLEN":
            self.strategy, self.threshold = MAXLEN, integer(text)
            if self.threshold < 0:
                raise CommandError(errors.BAD_MAXLEN)
        else:
            self.strategy, self.threshold = MINID, strict_id(text)
        return words

    def _set_limit(self, ctx: Context, limit: int, adds: bool) -> None:
        """Check and set the LIMIT; -1: none."""
        if limit > 0 and not self.strategy:
            raise CommandError(errors.LIMIT_WITHOUT_STRATEGY)
        if not adds and not self.strategy:
            raise CommandError(errors.NO_STRATEGY)
        if limit >= 0 and not self.approximate:
            raise CommandError(errors.LIMIT_OF_EXACT)
        if limit > 0:
            self.limit = limit
        elif limit < 0 and self.approximate:
            self.limit = most_at_once(ctx.ks)


def most_at_once(ks: Keyspace) -> int:
    """Return the default LIMIT of ``~``."""
    return min(NODES_AT_ONCE * ks.pool.max_entries, MOST_AT_ONCE)
