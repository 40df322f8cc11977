"""Requests for nodes: a server whose store has a damaged node asks another member for its entries. Bytes only.

    a request                                       an answer
    +---------+-----------+-------------+---------+-----+    the first 36 bytes of the request, then the entries as the
    | sid u64 | first     | first ID 16 | size    | key |    blob of a node (see storage.nodes.node); nothing if the
    |         | ord u64   |             | u32     |     |    member has no good copy of them
    +---------+-----------+-------------+---------+-----+

Numbers are big-endian. The fields are those of ``persistence.noderepair.NodeRange``. A leader requests in a frame WANT
and gets the answer as REPLCONF givenode; a replica requests with REPLCONF getnode and gets a frame NODE.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error

from persistence.noderepair import NodeRange
from replication.frames import LONGEST_ANSWER, LinkError

REPAIR = b"repair"  # a capability: the replica answers requests for nodes
HEAD = Struct(">QQ16sI")
LONGEST = LONGEST_ANSWER // 2  # bytes of a node: encoding and checking it takes some milliseconds of the event loop
LONGEST_KEY = 1 << 15  # bytes of a stream's key, so that a request is short


def pack_request(wanted: NodeRange) -> bytes:
    return _head(wanted) + wanted.key


def read_request(payload: bytes) -> NodeRange:
    """Raises LinkError."""
    try:
        sid, first_ord, first_id, size = HEAD.unpack_from(payload)
    except struct_error as error:
        raise LinkError("a request for a node that is too short") from error
    return NodeRange(sid, first_ord, int.from_bytes(first_id, "big"), size, payload[HEAD.size :])


def pack_answer(wanted: NodeRange, blob: bytes) -> bytes:
    return _head(wanted) + blob


def read_answer(payload: bytes, wanted: NodeRange) -> bytes | None:
    """Return the blob from an answer to this request, b"" if there is none; None if it answers another request."""
    return payload[HEAD.size :] if payload[: HEAD.size] == _head(wanted) else None


def _head(wanted: NodeRange) -> bytes:
    return HEAD.pack(wanted.sid, wanted.first_ord, wanted.first_id.to_bytes(16, "big"), wanted.size)
