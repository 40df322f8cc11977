"""``ClaimWatch``: transactions that are executed only while this worker holds the claims of its partitions.

    WATCH <claims>; MGET <claims>     the claims must have the values that this worker wrote
    MULTI ... EXEC                    nothing happens if a claim has changed since the WATCH
    WATCH <claims>; MGET <claims>     for the next transaction, in the same pipeline

A check of the lease before a call is not enough: the process can be paused between the check and the send. This has no
measurable effect on events/s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tidelog.client.steps import checked
from tidelog.client.strings import watch_and_get
from tidelog.coordination import Claim
from tidelog.transport.asyncconnection import AsyncConnection
from tidelog.transport.call import Call, plain, queued


class ClaimWatch:
    """The claims that are watched on one channel. ``taken`` is called with a claim that another worker has taken.

    ``any_epoch``: another task of this worker may claim them again, under a new epoch.
    """

    def __init__(self, taken: Callable[[Claim], None], any_epoch: bool = False) -> None:
        self.channel: AsyncConnection | None = None
        self._taken = taken
        self._any_epoch = any_epoch
        self._claims: dict[str, Claim] = {}  # by key

    async def watch(self, channel: AsyncConnection, claims: Iterable[Claim]) -> None:
        """Watch these claims on the channel, and no others that were not watched before. Raises LostError."""
        if channel is not self.channel:
            self.channel = channel
            self._claims.clear()
        wanted = {claim.key: claim for claim in claims if claim.key}
        new = [key for key, claim in wanted.items() if self._claims.get(key) is not claim]
        self._claims = {key: claim for key, claim in self._claims.items() if not claim.lost} | wanted
        if new:
            _, values = checked(list(await channel.send(watch_and_get(new))))
            self._compare(new, values)

    async def execute(self, calls: Sequence[Call[Any]], *, alone: bool = False) -> Any:
        """Execute calls in one transaction.

        Returns the reply of EXEC, which may be an error; None: a claim has changed, and nothing was executed.
        ``alone``: without claims, send the calls without a transaction, and return their results. Raises LostError.
        """
        assert self.channel is not None  # noqa: S101 - watch has set it
        keys = list(self._claims)
        if not keys and alone:
            return await self.channel.send(calls)
        made = [plain("MULTI"), *map(queued, calls), plain("EXEC"), *watch_and_get(keys)]
        replies = await self.channel.send(made)
        if keys:
            self._compare(keys, checked(replies[-1:])[0])
        return replies[-3] if keys else replies[-1]

    def _compare(self, keys: Sequence[str], values: Sequence[bytes | None]) -> None:
        for key, value in zip(keys, values, strict=True):
            claim = self._claims[key]
            ours, there = claim.value, value or b""
            if self._any_epoch:
                ours, there = ours.rpartition(b"|")[0], there.rpartition(b"|")[0]
            if ours != there:
                del self._claims[key]
                if not claim.lost:
                    self._taken(claim)
