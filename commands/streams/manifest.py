"""TMANIFEST: where the history of a stream is in the object store. Semantics [113].

The reply does not contain the manifest itself: it is in the object store, and handlers do no I/O. It contains what only
the server knows: which manifest belongs to this stream, and which entries were deleted since they were copied.
"""

from __future__ import annotations

from typing import Final

from commands.context import Context, Reply
from commands.declare import arg, block, command, key, opt
from commands.parse import positive
from resp import errors
from resp import reply as encode
from resp.errors import CommandError
from storage.history.manifest import directory_of

CHUNKS: Final = 8  # of 8192 ordinals with deleted entries, in one reply: at most 32,768 ranges, and 10 ms


@command(
    "TMANIFEST", key("RO ACCESS"),
    opt(block("range", arg("start-ordinal", "integer"), arg("end-ordinal", "integer"), token="RANGE")),
    flags="readonly", complexity="O(D): D deleted entries in the range, at most 65,536.",
)  # fmt: skip
def tmanifest(ctx: Context, argv: list[bytes]) -> Reply:
    """Return where the history of a stream is in the object store, and which of its entries were deleted since."""
    lo, hi = 0, -1
    if len(argv) != 2:
        if len(argv) != 5 or argv[2].upper() != b"RANGE":
            raise CommandError(errors.SYNTAX)
        lo, hi = positive(argv[3]), positive(argv[4])
    stream = ctx.ks.read_stream(argv[1], ctx.now)
    if stream is None:
        raise CommandError(errors.NO_SUCH_KEY)
    url, server = ctx.server.tiering.target()
    lo = max(lo, stream.first_ord)
    hi = stream.next_ord if hi < 0 else max(lo, min(hi, stream.next_ord))
    deleted: list[tuple[int, int]] = []
    if stream.tombstones is not None:
        deleted, hi = stream.tombstones.ranges(lo, hi, CHUNKS)
    return encode.encode(ctx.session.proto, {
        "url": url or None,
        "server": server or None,
        "folder": f"streams/{directory_of(argv[1])}",
        "sid": stream.sid,
        "first-ordinal": stream.first_ord,
        "end-ordinal": stream.next_ord,
        "deleted": [ordinal for each in deleted for ordinal in each],
        "deleted-until": hi,
    })  # fmt: skip
