"""Formats: which servers can read what a server writes to its log and its store. Bytes only, no I/O.

    1    readable by every version
    2    records of the kinds from 20 on, and the late databases of the store (persistence.layout)
    3    coded nodes in the store (storage.nodes.coded), which only a full copy transfers to a replica
    4    records of the kind 29, and the store's b"away" (persistence.layout): served time was shifted
    5    changes of an index of delayed entries in the store (storage.streams.indexlog), only in full copies
    6    the rows of such an index in several parts, only in full copies
    7    records of the kinds from 34 on, and the store's b"imports": slots with keys moved to this group
    8    references to history objects in the store (storage.nodes.reference), only in full copies
    9    records of the kind 40: how much of a stream stays local (storage.streams.tierafter)
    10   records of the kind 41: references in copies of streams of another group

A replica announces with ``REPLCONF capa format-N`` which format it can read. Earlier versions, which ignore such words,
read format 1. They follow a newer leader as long as it writes nothing that they can't read. The servers of a cluster
can therefore be upgraded one after another, and downgraded until data in a newer format is written.

Decision: a format changes only if the new feature is used. Metadata, pending lists and databases are written in their
old form as long as it can represent them, so a server of the previous version can open the directory, and a replica of
that version can be served.

Decision: a backup gets any copy of the store, and records up to BACKUPS, because it stores them without reading them.
Records of format 10 need history objects, from which a backup must be independent.
"""

from __future__ import annotations

import struct

from resp.errors import CorruptError
from storage.keyspace.replay import KNOWN
from storage.model.records import HEAD

FORMAT = 10  # the format that this version reads
RECORDS = 10  # the newest format of records
BACKUPS = 9  # the format of records up to which a backup without such a word stores them
CAPA = b"format-"
FIRST_OF_2 = 20  # the lowest kind of a record of format 2
FIRST_OF_4 = 29  # the lowest kind of a record of format 4
FIRST_OF_7 = 34  # the lowest kind of a record of format 7
FIRST_OF_9 = 40  # the lowest kind of a record of format 9
FIRST_OF_10 = 41  # the lowest kind of a record of format 10


def kinds(batch: bytes) -> set[int]:
    """Return the kinds of records in a batch. Raises CorruptError if it is not a batch."""
    found: set[int] = set()
    at, end = 0, len(batch)
    try:
        while at < end:
            kind, size = HEAD.unpack_from(batch, at)
            found.add(kind)
            at += HEAD.size + size
    except struct.error:
        at = -1
    if at != end:
        raise CorruptError("a batch that ends inside a record")
    return found


def needed(batch: bytes) -> int:
    """Return the format that the reader of a batch must know."""
    newest = max(kinds(batch), default=0)
    if newest >= FIRST_OF_9:
        return 10 if newest >= FIRST_OF_10 else 9
    return 7 if newest >= FIRST_OF_7 else 4 if newest >= FIRST_OF_4 else 2 if newest >= FIRST_OF_2 else 1


def unknown(batch: bytes) -> int:
    """Return the highest kind of the batch's records that this version does not know, or 0. Raises CorruptError."""
    return max(kinds(batch) - KNOWN, default=0)


def said(value: bytes) -> int:
    """Return the format that a replica announces with one of its capabilities; 0 if it is a different capability."""
    number = value.removeprefix(CAPA)
    return int(number) if value.startswith(CAPA) and number.isdigit() and len(number) < 5 else 0
