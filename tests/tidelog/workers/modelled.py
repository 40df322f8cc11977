"""A server without a network: what SET, GET and the like do, at a time that the test sets.

Tests of the real commands hold it to what it models: tests/tidelog/leases runs the same operations on a real server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelog.transport.call import Call


class Modelled:
    """Strings with an end, and nothing else; messages to streams are counted."""

    def __init__(self) -> None:
        self.now = 1_000.0  # seconds
        self.messages = 0
        self._values: dict[str, bytes] = {}
        self._ends: dict[str, float] = {}

    def answer(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Carry out calls, one after another; what they read from their replies."""
        return [call.read(self._done(*call.args)) if call.args else call.read(None) for call in calls]

    def get(self, key: str) -> bytes | None:
        if self._ends.get(key, self.now + 1) <= self.now:
            del self._values[key], self._ends[key]
        return self._values.get(key)

    def _done(self, name: Any, key: Any = "", *words: Any) -> Any:
        if name == "GET":
            return self.get(key)
        if name == "MGET":
            return [self.get(each) for each in (key, *words)]
        if name == "SET":
            return self._set(key, words[0], list(words[1:]))
        if name == "DELEX":
            equal = self.get(key) == words[1]
            if equal:
                del self._values[key]
                self._ends.pop(key, None)
            return int(equal)
        if name == "INCRBY":
            self._values[key] = b"%d" % (int(self.get(key) or 0) + words[0])
            return int(self._values[key])
        if name == "PTTL":
            there = self.get(key) is not None
            return round((self._ends[key] - self.now) * 1000) if key in self._ends else -1 if there else -2
        assert name == "TAPPEV"
        self.messages += 1
        return b"1.%d" % self.messages

    def _set(self, key: str, value: bytes, words: list[Any]) -> bytes | None:
        old = self.get(key)
        met = old is None if words[0] == "NX" else old == words[1]
        if met:
            self._values[key] = value
            self._ends.pop(key, None)
            if "PX" in words:
                self._ends[key] = self.now + words[words.index("PX") + 1] / 1000
        assert "GET" in words
        return old
