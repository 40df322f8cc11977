"""Events that pass, for a look at them: at most so many a second, their values cut.

Rule 1: a tap costs an entity a look at the clock for each batch, and nothing is kept of what it does not show.
Rule 2: what the reader does not take in time is counted and dropped; nobody waits for a reader.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from tidelog.flows.api.event import Event
from tidelog.flows.runtime.channel import EventChannel, Tap

SHOWN: Final = 1000  # characters of a value, and of meta
WAITING: Final = 500  # events that the reader has not taken
TAPS: Final = 16  # at a time, in one process
RATE: Final = 10.0  # events a second, where nothing is said
RATE_MOST: Final = 1000.0


class TapReader:
    """Taps on channels. ``attach``, then ``next`` again and again, then ``detach``."""

    def __init__(self, channels: Iterable[tuple[str, EventChannel]], rate: float) -> None:
        self._channels = list(channels)  # (instance, channel)
        self._rate = rate
        self._room = 1.0  # events that may be shown now
        self._at = time.monotonic()
        self._waiting: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._taps: list[tuple[EventChannel, Tap]] = []
        self.passed = 0  # events that were seen
        self.shown = 0

    def attach(self) -> None:
        for alias, channel in self._channels:
            tap = self._tap(alias, channel.name)
            channel.taps = (*channel.taps, tap)
            self._taps.append((channel, tap))

    def detach(self) -> None:
        for channel, tap in self._taps:
            channel.taps = tuple(each for each in channel.taps if each is not tap)
        self._taps.clear()

    def wake(self) -> None:
        self._news.set()

    async def next(self, seconds: float) -> list[bytes]:
        """What has come, as JSON objects; empty: nothing in that time."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return []
        self._news.clear()
        found = list(self._waiting)
        self._waiting.clear()
        return found

    def _tap(self, alias: str, channel: str) -> Tap:
        def tap(events: list[Event]) -> None:
            self.passed += len(events)
            now = time.monotonic()
            self._room = min(self._room + (now - self._at) * self._rate, max(1.0, self._rate))
            self._at = now
            for event in events[: int(self._room)]:
                if len(self._waiting) >= WAITING:
                    return
                self._room -= 1.0
                self.shown += 1
                self._waiting.append(told(alias, channel, event))
                self._news.set()

        return tap


def told(alias: str, channel: str, event: Event) -> bytes:
    """One event as a JSON object."""
    value, cut = shown(event.value)
    meta, cut_meta = shown(event.meta)
    facts: dict[str, Any] = {
        "flow": alias, "channel": channel, "id": event.id, "attempt": event.attempt, "path": event.path,
        "ingest_ns": event.ingest_ns, "value": value, "meta": meta, "truncated": cut or cut_meta,
    }  # fmt: skip
    try:
        return msgspec.json.encode(facts, enc_hook=repr)
    except Exception:  # noqa: BLE001 - a look at an event must not cost its flow
        return msgspec.json.encode({name: _plain(each) for name, each in facts.items()})


def _plain(value: Any) -> Any:
    """What can be written, whatever the value: its numbers, else its text."""
    if isinstance(value, (bool, int, type(None))):
        return value
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception as error:  # noqa: BLE001 - of a class of the user's
        text = f"<{type(value).__name__}: {type(error).__name__}>"
    return text[:SHOWN].encode("utf-8", "backslashreplace").decode()


def shown(value: Any) -> tuple[Any, bool]:
    """The value, or where its JSON is too long the beginning of that as text."""
    if isinstance(value, str):
        return (value, False) if len(value) <= SHOWN else (value[:SHOWN], True)
    if isinstance(value, (bytes, bytearray)):
        part = bytes(value[:SHOWN])
        try:
            return part.decode(), len(value) > SHOWN
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(part[: SHOWN // 2]).decode()}, len(value) > SHOWN // 2
    try:
        text = msgspec.json.encode(value, enc_hook=repr)
    except Exception:  # noqa: BLE001 - also what a repr of the user's raises
        return _plain(value), True
    return (msgspec.Raw(text), False) if len(text) <= SHOWN else (text[:SHOWN].decode("utf-8", "replace"), True)
