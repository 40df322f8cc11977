"""The server's end of the link to a continuous backup (``tidelog backup --continuous``).

    REPLCONF tidelog 1 rdb-only 1 capa continuous
    REPLCONF history ...                      as from a replica
    PSYNC <ID> <offset>, or PSYNC ? -1        +CONTINUE or +FULLRESYNC as to a replica; LOG frames follow
    REPLCONF ACK <offset>                     the log up to there is stored

Rule 1: a backup is not a replica. Nothing waits for it, and its acknowledgements only release the journal.
Rule 2: the log is sent every EVERY seconds, and not with each tick. A tick therefore does nothing for a backup: a write
to a socket per tick costs a leader with one client about a fifth of an append. Commit groups remain separate, so that
a restore can end after each of them, but they share one header and one checksum.
Rule 3: while replies wait for replicas (``replica-acks``), only confirmed records are sent. Records that no other
server has may be lost in a failover, and the backup could not continue from them.
"""

from __future__ import annotations

import asyncio
from array import array
from sys import byteorder
from typing import Final

from commands.parse import positive
from persistence.backlog import Batches
from replication import frames
from replication.feed import AT_ONCE, ReplicaFeed
from replication.frames import encode
from resp.errors import CommandError

CONTINUOUS: Final = b"continuous"  # a capability
EVERY: Final = 0.25  # seconds between two LOG frames to a backup that has the whole log
IDLE_FRAMES: Final = 2  # intervals without records after which the time is sent


class BackupFeed(ReplicaFeed):
    """The link to one continuous backup."""

    _idle = 0  # intervals since the last frame

    def _request(self, argv: list[bytes]) -> None:
        """Process REPLCONF ACK offset. Any other request is only a keepalive."""
        if len(argv) == 3 and [argv[0].upper(), argv[1].upper()] == [b"REPLCONF", b"ACK"]:
            try:
                has = positive(argv[2])
            except CommandError:
                self.cut("it acknowledged something that is not an offset")
                return
            if has > self.position:
                self.cut(f"it acknowledged log offset {has}, which is beyond what it was sent")
                return
            self.acknowledged = self.needs = max(has, self.needs)
        self.owner.heard(self)

    async def _catch_up(self) -> None:
        """Send the log until the link ends."""
        while True:
            await self._room.wait()
            await asyncio.sleep(EVERY if await self._send_some() else 0)

    async def _send_some(self) -> bool:
        """Send records from the log; returns whether nothing is left."""
        owner = self.owner
        disk, start, now = owner.disk, self.position, owner.now()
        end = min(owner.confirmed, disk.offset) if owner.each else disk.offset
        found: Batches | None = disk.recent(start, AT_ONCE) if start < end else []
        batches: Batches = await self._in_thread(disk.read, start, AT_ONCE) if found is None else found
        sizes, groups = array("I"), list[bytes]()
        for offset, group in batches:
            assert offset == self.position  # noqa: S101 - groups are sent without gaps
            if offset + len(group) > end:
                break
            self.position += len(group)
            sizes.append(len(group))
            groups.append(group)
        complete = self.position == end or not groups
        if groups or self._idle >= IDLE_FRAMES:
            self._idle = 0
            if byteorder == "little":
                sizes.byteswap()
            body = frames.LOG_BODY.pack(now if complete else 0, len(groups))
            self._write(encode(frames.LOG, start, b"".join((body, sizes.tobytes(), *groups))))
        else:
            self._idle += 1
        return complete
