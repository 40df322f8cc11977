"""The server's end of the link to a continuous backup (``tidelog backup --continuous``).

    REPLCONF tidelog 1 rdb-only 1 capa continuous
    REPLCONF history ...                      as from a replica
    PSYNC <ID> <offset>, or PSYNC ? -1        +CONTINUE or +FULLRESYNC as to a replica; LOG frames follow
    REPLCONF ACK <offset>                     the log up to there is stored

Rule 1: a backup is not a replica. Nothing waits for it, and its acknowledgements only release the journal.
Rule 2: the log is sent every EVERY seconds, and not with each tick. A tick therefore does nothing for a backup, and
many commit groups share one header, one checksum, and one write to the socket. Their sizes are sent, so that a restore
can end after each of them.
Rule 3: while replies wait for replicas (``replica-acks``), only confirmed records are sent. Records that no other
server has may be lost in a failover, and the backup could not continue from them.

Rule 4: records that refer to history objects are not sent. The link ends before them, and the next one begins with a
full copy (Rule 5a of ``feed``). The link waits until the backup has stored all records before them.

Decision: frames of 256 KB, which are not copied to join them with their headers. For 150 bytes of log, they took 0.20
us of CPU time in commit groups of 150 bytes, and 0.05 us in groups of 2.4 KB (minima of 60 rounds, interpreted). Joined
frames of 1 MB took 0.35 and 0.15 us. XXH3 instead of a CRC avoids another 0.02 us.
"""

from __future__ import annotations

import asyncio
from array import array
from sys import byteorder
from typing import Final

from commands.parse import positive
from persistence.backlog import Batches
from replication import formats, frames
from replication.feed import BeyondError, ReplicaFeed
from replication.frames import head
from resp.errors import CommandError

CONTINUOUS: Final = b"continuous"  # a capability
EVERY: Final = 0.25  # seconds between two LOG frames to a backup that has the whole log
FRAME: Final = 1 << 18  # bytes of the log in a frame from memory
READ: Final = 1 << 20  # the same from the journal, which is read in a thread
STORED: Final = 60.0  # seconds until a backup has stored what it was sent; its lag is usually shorter
IDLE_FRAMES: Final = 2  # intervals without records after which the time is sent


class BackupFeed(ReplicaFeed):
    """The link to one continuous backup."""

    follows = True
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

    async def _stored(self) -> None:
        """Wait until the backup has stored what it was sent, at most STORED seconds."""
        left = STORED
        while self.needs < self.position and left > 0:
            await asyncio.sleep(EVERY)
            left -= EVERY

    async def _send_some(self) -> bool:
        """Send records from the log; returns whether nothing is left."""
        owner = self.owner
        disk, start, now = owner.disk, self.position, owner.now()
        end = min(owner.confirmed, disk.offset) if owner.each else disk.offset
        found: Batches | None = disk.recent(start, FRAME) if start < end else []
        batches: Batches = await self._in_thread(disk.read, start, READ) if found is None else found
        sizes, groups, checked = array("I"), list[bytes](), self.earlier and owner.may_refer
        for offset, group in batches:
            assert offset == self.position  # noqa: S101 - groups are sent without gaps
            if offset + len(group) > end:
                break
            if checked and (needed := formats.needed(group)) > self._reads:
                if groups:  # those before it are sent first
                    break
                await self._stored()
                raise BeyondError(needed)
            self.position += len(group)
            sizes.append(len(group))
            groups.append(group)
        complete = self.position == end or not groups
        if groups or self._idle >= IDLE_FRAMES:
            self._idle = 0
            if byteorder == "little":
                sizes.byteswap()
            body = frames.LOG_BODY.pack(now if complete else 0, len(groups))
            payload = b"".join((body, sizes.tobytes(), *groups))
            self._write(head(frames.LOG, start, payload))
            self._write(payload)
        else:
            self._idle += 1
        return complete
