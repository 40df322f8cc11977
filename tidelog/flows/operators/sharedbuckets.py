"""Token buckets that several processes share. They are stored on the tidelog server and use its clock.

    tidelog:flows:ratelimit:<name>:<key>    1732300000123456:7f3a9c0d   us since 1970 at which it is full; writer

Rule 1: A bucket is changed by SET IFEQ with the value that was read (SET NX if there was none), so a token is never
        taken twice. If the value has changed meanwhile, it is read again.
Rule 2: Each value is unique, so a client that repeats a change after a lost reply can tell whether the first one was
        applied.
Rule 3: A bucket expires some time after it is full, because a full bucket is equivalent to none.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Final

from tidelog.client import strings
from tidelog.flows.operators.serverrequests import ServerRequests
from tidelog.flows.operators.tokenbuckets import Rate
from tidelog.transport.call import Call

CROWD: Final = 0.005  # s: the maximum wait after a conflict
KEPT: Final = 1000  # ms after which a full bucket expires


class SharedBuckets:
    """The buckets of one limit."""

    def __init__(self, server: ServerRequests, prefix: str, rate: Rate, chance: random.Random) -> None:
        self._server = server
        self._prefix = prefix
        self._step = max(round(rate.step * 1e6), 1)  # us
        self._burst = max(round(rate.burst * 1e6), self._step)  # us
        self._random = chance

    async def take(self, wanted: Mapping[str, int]) -> tuple[dict[str, int], float]:
        """Take tokens. Return their number for each key, and the seconds until there may be more."""
        taken: dict[str, int] = {}
        wait = 0
        keys = list(wanted)
        while keys:
            clock, *found = await self._server.together(
                Call(("TIME",), _microseconds), *(strings.get(self._prefix + key) for key in keys)
            )
            changes: list[tuple[str, int, bytes]] = []
            calls = []
            for key, old in zip(keys, found, strict=True):
                full = max(int(old.partition(b":")[0]) if old else 0, clock)
                count = min(wanted[key], (clock + self._burst - full) // self._step)
                if count < wanted[key]:
                    more = full + (max(count, 0) + 1) * self._step - self._burst - clock
                    wait = min(wait or more, more)
                if count <= 0:
                    taken[key] = 0
                    continue
                later = full + count * self._step
                new = b"%d:%016x" % (later, self._random.getrandbits(64))
                ms = (later - clock) // 1000 + KEPT
                name = self._prefix + key
                calls.append(strings.set_equal(name, new, old, ms) if old else strings.set_absent(name, new, ms))
                changes.append((key, count, old or b""))
                taken[key] = count
            keys = []
            for (key, _, old), before, call in zip(changes, await self._changed(calls), calls, strict=True):
                if (before or b"") != old and before != call.args[2]:  # another process has changed it
                    keys.append(key)
            if keys:
                await asyncio.sleep(self._random.random() * CROWD)
        return taken, wait / 1e6

    async def _changed(self, calls: list[Call[bytes | None]]) -> list[bytes | None]:
        return await self._server.together(*calls) if calls else []


def _microseconds(reply: list[bytes]) -> int:
    return int(reply[0]) * 1_000_000 + int(reply[1])
