"""Stateless interceptors of whole messages: ``base64``, ``remove_empty``, ``ingest_timestamp``."""

from __future__ import annotations

import base64
from typing import Final

from tidelog.flows.interceptors.base import BadMessage, MessagePostprocessor, MessagePreprocessor, TimestampedMessage

STAMP: Final = 8  # bytes: ns since 1970, big endian, not negative


class FromBase64(MessagePreprocessor):
    """Decodes base64. Whitespace around a message is ignored."""

    def feed(self, data: bytes) -> list[bytes]:
        try:
            return [base64.b64decode(data.strip(), validate=True)]
        except ValueError as error:
            return [BadMessage.of(data, f"not base64: {error}")]


class ToBase64(MessagePostprocessor):
    """Encodes as base64 without line breaks."""

    def process(self, data: bytes) -> list[bytes]:
        return [base64.b64encode(data)]


class RemoveEmpty(MessagePreprocessor):
    """Drops empty messages."""

    def feed(self, data: bytes) -> list[bytes]:
        return [data] if data else []


class RemoveEmptyAfter(MessagePostprocessor):
    """Drops empty messages."""

    def process(self, data: bytes) -> list[bytes]:
        return [data] if data else []


class TakeTimestamp(MessagePreprocessor):
    """Removes the ingest time, which another process put into the first 8 bytes."""

    def feed(self, data: bytes) -> list[bytes]:
        if len(data) < STAMP:
            return [BadMessage.of(data, f"{len(data)} bytes: a message with an ingest time has at least {STAMP}")]
        made = TimestampedMessage(data[STAMP:])
        made.ingest_ns = int.from_bytes(data[:STAMP], "big")
        return [made]


class AddTimestamp(MessagePostprocessor):
    """Puts the ingest time of the event into the first 8 bytes."""

    ingest_ns: int = 0  # of the current event; set by ``PayloadWriter``

    def process(self, data: bytes) -> list[bytes]:
        return [max(0, self.ingest_ns).to_bytes(STAMP, "big") + data]
