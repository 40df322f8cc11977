"""What tests of ownership share: a worker without processors, that notes what it is told."""

from __future__ import annotations

import asyncio
from typing import Any

from tidelog.client.asyncclient import AsyncClient
from tidelog.coordination import Claim, Keeper, Lease
from tidelog.coordination.controlstream import ControlStream
from tidelog.transport.access import Access
from tidelog.workers import keys
from tidelog.workers.coordination.leadership import Leadership
from tidelog.workers.coordination.messages import SUBJECT
from tidelog.workers.coordination.ownership import PartitionOwnership

PARTITIONS = 16


class Notes:
    """A listener. ``owned`` is what it may work on; ``told``: each call."""

    def __init__(self, slow: float = 0.0) -> None:
        self.owned: dict[int, Claim] = {}
        self.told: list[tuple[str, int]] = []
        self.slow = slow  # seconds that releasing takes
        self.fails = 0  # how often ``acquired`` raises

    async def acquired(self, claim: Claim) -> None:
        if self.fails:
            self.fails -= 1
            raise ValueError("as asked for")
        assert claim.partition not in self.owned
        self.owned[claim.partition] = claim
        self.told.append(("acquired", claim.partition))

    async def released(self, partition: int) -> None:
        await asyncio.sleep(self.slow)
        self.owned.pop(partition, None)
        self.told.append(("released", partition))

    def lost(self, partition: int) -> None:
        del self.owned[partition]
        self.told.append(("lost", partition))


class Worker:
    """A keeper, an ownership for each processor, leadership: what a worker has, without the processors."""

    def __init__(
        self, url: str, name: str, ttl: float = 10.0, processors: tuple[str, ...] = ("bill",),
        partitions: int = PARTITIONS, notes: Notes | None = None, proxied: str | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.name = name
        self.lease = Lease(keys.lease("shop", name), name, ttl, keys.epochs("shop"))
        self.keeper = Keeper(Access((proxied or url,)), self.lease)
        self.client = AsyncClient(proxied or url)
        self.control = ControlStream(keys.control("shop"), SUBJECT, self.client)
        self.notes = notes or Notes()
        lease_ends: dict[str, float] = {}
        self.ownerships = [
            PartitionOwnership(
                "shop", processor, partitions, self.lease, self.client, self.notes, self.control, lease_ends=lease_ends,
                **options,
            )
            for processor in processors
        ]  # fmt: skip
        self.led: list[str] = []
        self.leadership = Leadership(
            "shop", self.lease, self.client, self.control, lease_ends=lease_ends,
            gained=lambda claim: self.led.append(f"gained {claim.held}"), lost=lambda: self.led.append("lost"),
        )  # fmt: skip

    @property
    def owned(self) -> set[int]:
        return {at for at, claim in self.notes.owned.items() if claim.held}

    async def start(self) -> Worker:
        self.keeper.start()
        await self.control.begin()
        self.control.start()
        for ownership in self.ownerships:
            ownership.start()
        self.leadership.start()
        return self

    async def stop(self) -> None:
        await asyncio.gather(*[ownership.stop() for ownership in self.ownerships], self.leadership.stop())
        await self.close()

    async def close(self) -> None:
        """End without leaving; the lease is released."""
        await asyncio.to_thread(self.keeper.stop)
        await self.control.stop()
        await self.client.close()


def shared(workers: list[Worker], partitions: int = PARTITIONS) -> bool:
    """Whether each partition has one owner, and the shares are even."""
    owned = [worker.owned for worker in workers]
    sizes = list(map(len, owned))
    return sorted(at for each in owned for at in each) == list(range(partitions)) and max(sizes) - min(sizes) <= 1
