"""Interceptors of whole messages that remember nothing: base64, remove_empty, ingest_timestamp."""

from __future__ import annotations

import base64
from typing import Final

from tidelog.flows.interceptors.base import Bad, NoOptions, Stamped

STAMP: Final = 8  # bytes: ns since 1970, big endian, not negative


class _Each:
    """A preprocessor of whole messages."""

    Options = NoOptions

    def __init__(self, options: NoOptions, most: int) -> None:
        pass

    def end(self) -> list[bytes]:
        return []


class _EachAfter:
    """A postprocessor of whole messages."""

    Options = NoOptions

    def __init__(self, options: NoOptions) -> None:
        pass

    def end(self) -> list[bytes]:
        return []


class FromBase64(_Each):
    """Whitespace around a message is no part of it."""

    def feed(self, data: bytes) -> list[bytes]:
        try:
            return [base64.b64decode(data.strip(), validate=True)]
        except ValueError as error:
            return [Bad.of(data, f"no base64: {error}")]


class ToBase64(_EachAfter):
    """Without line breaks."""

    def process(self, data: bytes) -> list[bytes]:
        return [base64.b64encode(data)]


class RemoveEmpty(_Each):
    """Messages without a byte are no messages."""

    def feed(self, data: bytes) -> list[bytes]:
        return [data] if data else []


class RemoveEmptyAfter(_EachAfter):
    """The same for what is written."""

    def process(self, data: bytes) -> list[bytes]:
        return [data] if data else []


class TakeTimestamp(_Each):
    """The first 8 bytes say when the message came in, somewhere else."""

    def feed(self, data: bytes) -> list[bytes]:
        if len(data) < STAMP:
            return [Bad.of(data, f"{len(data)} bytes: a message with its ingest time has at least {STAMP}")]
        made = Stamped(data[STAMP:])
        made.ingest_ns = int.from_bytes(data[:STAMP], "big")
        return [made]


class AddTimestamp(_EachAfter):
    """When the event came in, in the first 8 bytes."""

    ingest_ns: int = 0  # of the event that is being written; its writer sets it

    def process(self, data: bytes) -> list[bytes]:
        return [max(0, self.ingest_ns).to_bytes(STAMP, "big") + data]
