"""A storm in a cluster: several groups share the slots, which move meanwhile, with their keys or without."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.simulation.clients import LostError, RefusedError
from tests.storm.clients import EXPECTED, Client, Connection
from tests.storm.delayworks import Delays
from tests.storm.histories import Histories, empty_cache
from tests.storm.members import Member, send
from tests.storm.routing import Routed
from tests.storm.run import PATIENT, Plan, Result, Storm, StormError, digest_of, run_storm
from tests.storm.slotworks import WORKS, SlotRecord, Strings
from tests.storm.works import Record, Work

LOST: Final = "Restore the object"  # in the reply to a call that needs an object that is missing or damaged
STRINGS: Final = 6  # strings of a round; the others of WORKS have their own keys
OLD: Final = tuple(f"old:{at}" for at in range(6))
OLD_ENTRIES: Final = 300
HISTORIES: Final = 90.0  # seconds in which passes delete what is not needed


class SlotClient(Client):
    """Runs one work, at the owners of its keys."""

    expected = (*EXPECTED, "MOVED", "TRYAGAIN")

    def __init__(self, names: dict[int, str], losses: Callable[[str], int], *rest: Any) -> None:
        """``names``: the members by announced port; ``losses``: how often a member has lost data."""
        self._names = names
        self._losses = losses
        super().__init__(*rest)

    def _is_expected(self, error: str) -> bool:
        return super()._is_expected(error) and (LOST not in error or self.tolerant())

    async def _connect(self, member: str) -> Connection:
        return Routed(self._ports, self._names, self._random, losses=self._losses)


class ClusterStorm(Storm):
    """Several groups. Rule: at the end of a round, all members use the same map, and no move is left."""

    works = WORKS

    def __init__(self, plan: Plan, top: Path) -> None:
        super().__init__(plan, top)
        self._announced: dict[int, str] = {}
        self.history = Histories(plan.history, top, set(self._names().values())) if plan.history else None

    def _client(self, ports: dict[str, int], work: Work) -> Client:
        chance = random.Random(self.random.random())
        return SlotClient(self._announced, self._losses, ports, work, chance, self.add_trouble, self._damaged)

    def _losses(self, name: str) -> int:
        return next(member.losses for member in self.members if member.name == name)

    def _names(self) -> dict[str, str]:
        return {
            f"{group}{chr(ord('a') + at)}": str(group)
            for group, count in enumerate(self.plan.groups, 1)
            for at in range(count)
        }

    def _settings(self, member: Member) -> dict[str, str | int]:
        port = member.settings["replica-announce-port"]
        self._announced |= {int(port): member.name, member.port: member.name}
        return {
            "cluster-enabled": "yes", "cluster-name": "storm", "min-in-sync": 1, "cluster-announce-port": port,
            "cluster-announce-ip": "127.0.0.1", "move-pause": 500, "stream-idmp-maxsize": 10_000,
            "stream-idmp-duration": 3600, **(self.history.settings(member.group) if self.history is not None else {}),
        }  # fmt: skip

    def _record(self, prefix: str) -> Record:
        return SlotRecord(prefix, STRINGS, tuple(self._earlier) if self.history is not None else ())

    async def _start(self, lossy: bool) -> None:
        await super()._start(lossy)
        if self.history is not None:
            self.faults.history = self.history.directory

    async def _close(self) -> None:
        await super()._close()
        if self.history is not None:
            self.result.history = self.history.counts(self.members)
            self.history.close()

    async def _watch(self) -> None:
        await asyncio.gather(super()._watch(), self._watch_history())

    async def _watch_history(self) -> None:
        while self.history is not None:
            await asyncio.to_thread(self.history.look)
            await asyncio.sleep(1.0)

    async def _prepared(self, record: Record) -> None:
        await super()._prepared(record)
        if self.history is not None and not self._earlier:
            await self._until(self._filled, "streams whose entries leave the stores")

    async def _filled(self) -> bool:
        """Add streams, as if of an earlier round, so that moves have objects to link from the start."""
        with contextlib.suppress(LostError, RefusedError):
            connection = await self._connected()
            try:
                for key in OLD:
                    pads = [self.random.randbytes(50).hex() for _ in range(OLD_ENTRIES)]
                    for pad in pads if not await connection("EXISTS", key) else ():
                        await connection("XADD", key, "*", "v", f"old{len(pad)}", "pad", pad)
                    self._earlier[key] = digest_of(await connection("TRANGE", key, "-", "+"))
            finally:
                connection.close()
            fields = [await self._info(member, "persistence") for member in self.members if member.leads]
            return sum(int(each["tier_freed_nodes"]) for each in fields) >= len(OLD) * OLD_ENTRIES // 100
        return False

    async def _connected(self) -> Connection:
        return Routed({member.name: member.port for member in self.members}, self._announced, random.Random(1), PATIENT)

    async def _moved_again(self, record: Record) -> None:
        assert isinstance(record, SlotRecord)
        before = record.moves["MOVE done"]
        await self._until(lambda: record.moves["MOVE done"] > before, "slots move")

    async def _recovered(self) -> None:
        await super()._recovered()
        found: list[Any] = []

        async def agreed() -> bool:
            found.clear()
            with contextlib.suppress(LostError, RefusedError):
                for member in self.members:
                    (reply,) = await self._ask(member, ("TCLUSTER", "STATUS"))
                    status = json.loads(reply)
                    found.append(status)
                    if status["map"] is None or status["map"]["moves"] or status["problem"] or status["warnings"]:
                        return False
                    if member.leads != status["leads"]:
                        return False
                    size, keys = await self._ask(member, ("DBSIZE",), ("KEYS", "*"))
                    if member.leads and size != len(keys):  # it has copies of keys that another group has
                        found.append((member.name, size, keys))
                        return False
                return all(each["map"] == found[0]["map"] for each in found)
            return False

        try:
            await self._until(agreed, "all members use the same map, without moves and copies")
        except Exception:
            self.note(f"the last member of the cluster: {json.dumps(found[-1:])}")
            raise

    async def _check(self, record: Record, works: list[Work]) -> None:
        assert isinstance(record, SlotRecord)
        for member in self.members if self.history is not None else ():
            await asyncio.to_thread(empty_cache, member)
        connection = await self._connected()
        try:
            for string in record.strings:
                await next(work for work in works if isinstance(work, Strings)).look(connection, string)
            for key, counter in record.counters.items():
                found = int(await connection("GET", key) or 0)
                assert max(counter.acked, counter.shown) <= found <= counter.sent, (
                    f"{key} is {found} at the end: {counter.acked} calls were acknowledged, and {counter.sent} sent"
                )
            for work in works:
                if isinstance(work, Delays):
                    await work.joined(connection)
            for key in {key for key, _, _ in record.shown} | {key for key, _, _, _ in record.tailed}:
                rows = await connection("TRANGE", key, "-", "+") or []
                record.check_shown(key, rows)
                record.check_tailed(key, rows)
        finally:
            connection.close()
        await super()._check(record, works)
        if self.history is not None:
            await self._check_history(self.history)
        self.result.moves += Counter(record.moves)

    async def _check_history(self, history: Histories) -> None:
        problems: list[str] = []

        async def intact() -> bool:
            """Objects are deleted meanwhile, such as those of the streams that _check() has deleted."""
            problems[:] = await asyncio.to_thread(history.problems)
            return not problems

        try:
            await self._until(intact, "intact histories", HISTORIES)
        except StormError as error:
            raise StormError(f"the histories are not intact: {problems[:10]}") from error
        connection = await self._connected()
        try:
            streams = {key: await connection("TRANGE", key, "-", "+") or [] for key in self._earlier}
        finally:
            connection.close()
        differences = await asyncio.to_thread(history.differences, streams)
        assert not differences, f"objects differ from streams: {differences[:5]}"

    async def _ended(self) -> None:
        if self.history is None:
            return
        connection = await self._connected()
        try:
            for key in self._earlier:
                await connection("DEL", key)
        finally:
            connection.close()
        for member in self.members:
            for pid in member.helpers():  # the next helper searches for objects that no manifest lists
                send(pid, signal.SIGKILL)
        left: list[str] = []

        async def empty() -> bool:
            assert self.history is not None
            left[:] = await asyncio.to_thread(self.history.left)
            return not left

        try:
            await self._until(empty, "empty prefixes", HISTORIES)
        except StormError as error:
            raise StormError(f"files are left although all streams were deleted: {left[:10]}") from error


def run(plan: Plan, top: Path) -> Result:
    """Run a storm in a directory. Raises StormError, which names the seed, the timeline and the logs."""
    return run_storm(ClusterStorm(plan, top))
