"""Samples of passing events: a limited number per second, with truncated values.

Rule 1: A tap costs an entity one clock reading per batch. Events that are not sampled are not stored.
Rule 2: Samples that the client does not read in time are counted and dropped. No entity waits for a client.
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
from tidelog.flows.api.signals import Signal
from tidelog.flows.runtime.channel import EventChannel, Tap
from tidelog.operating.tasks import set_within

SHOWN: Final = 1000  # characters of a value, and of meta
WAITING: Final = 500  # samples that the client has not read
TAPS: Final = 16  # maximum number in a process
RATE: Final = 10.0  # default number of events per second
RATE_MOST: Final = 1000.0


class TapReader:
    """A tap on channels: call ``attach``, then ``next`` repeatedly, then ``detach``."""

    def __init__(self, channels: Iterable[tuple[str, EventChannel]], rate: float) -> None:
        self._channels = list(channels)  # (instance, channel)
        self._rate = rate
        self._room = 1.0  # events that may be sampled now
        self._at = time.monotonic()
        self._waiting: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._taps: list[tuple[EventChannel, Tap]] = []
        self.passed = 0  # total number of events
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
        """Wait for samples and return them as JSON objects. Return an empty list after the timeout."""
        if not await set_within(self._news, seconds):
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
                self._waiting.append(as_json(alias, channel, event))
                self._news.set()

        return tap


def waiting(channels: Iterable[tuple[str, EventChannel]], limit: int) -> list[msgspec.Raw]:
    """Return the first events that wait in channels, oldest first in each, without taking them."""
    found: list[msgspec.Raw] = []
    for alias, channel in channels:
        for item in channel.items:
            for event in [] if isinstance(item, Signal) else item:
                if len(found) >= limit:
                    return found
                found.append(msgspec.Raw(as_json(alias, channel.name, event)))
    return found


def as_json(alias: str, channel: str, event: Event) -> bytes:
    """Return an event as a JSON object."""
    value, cut = shown(event.value)
    meta, cut_meta = shown(event.meta)
    facts: dict[str, Any] = {
        "flow": alias, "channel": channel, "id": event.id, "attempt": event.attempt, "path": event.path,
        "ingest_ns": event.ingest_ns, "value": value, "meta": meta, "truncated": cut or cut_meta,
    }  # fmt: skip
    try:
        return msgspec.json.encode(facts, enc_hook=repr)
    except Exception:  # noqa: BLE001 - a tap must not affect its flow
        return msgspec.json.encode({name: _plain(each) for name, each in facts.items()})


def _plain(value: Any) -> Any:
    """Return a value that can always be encoded: a number, or text."""
    if isinstance(value, (bool, int, type(None))):
        return value
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception as error:  # noqa: BLE001 - user classes can raise any exception
        text = f"<{type(value).__name__}: {type(error).__name__}>"
    return text[:SHOWN].encode("utf-8", "backslashreplace").decode()


def shown(value: Any) -> tuple[Any, bool]:
    """Return the value and whether it was truncated. If its JSON is too long, return the beginning as text."""
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
    except Exception:  # noqa: BLE001 - user classes can raise any exception
        return _plain(value), True
    return (msgspec.Raw(text), False) if len(text) <= SHOWN else (text[:SHOWN].decode("utf-8", "replace"), True)
