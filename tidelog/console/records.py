"""Entries of topics as records: decoded by the codec in the topic's settings, without the type that programs declare.

Rule 1: decoding never executes code of a type, and never unpickles. The settings have the names and scalar types of the
        fields; a value that does not have its type is shown, with a problem.
Rule 2: compressed data is decompressed up to a limit, which is checked before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec
import zstandard

from tidelog.client import strings, tracecontext
from tidelog.client.entries import Entry
from tidelog.console import payloads
from tidelog.console.connection import UserConnection
from tidelog.console.infotext import text
from tidelog.topics.settings import TopicError, TopicSettings, key_of, read_settings

LISTED: Final = 16 * 1024  # bytes of a record that is decoded in a list or a search
LARGEST: Final = 1 << 20  # bytes of a record that is decoded for its own page
DEEPEST: Final = 100  # nesting depth of values
FIELD: Final = "data"  # of an entry with a packed record
PARTITION: Final = re.compile(r"(.+):(0|[1-9][0-9]{0,5})", re.DOTALL)  # the key of a partition
_TYPES: Final[Mapping[str, Any]] = {
    "int": int, "float": float, "bool": bool, "datetime": datetime, "date": date, "time": time, "timedelta": timedelta,
    "uuid": UUID, "decimal": Decimal, "str": str,
}  # fmt: skip
_NATIVE: Final = ("int", "float", "bool")  # types whose values JSON has


Shortener = Callable[[Entry], list[tuple[str, str]]]  # returns the first fields of an entry, for a list


@dataclass(frozen=True)
class DecodedRecord:
    """A record. ``value`` has only types of JSON."""

    value: Any  # a dict, unless the packed value is something else; None: it can't be decoded
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> str:
        """Return the record as indented JSON, of which the end is left out if it is long."""
        return payloads.json_text(self.value)


class TopicDecoder:
    """Decodes the entries of a topic's partitions."""

    def __init__(self, topic: str, settings: TopicSettings) -> None:
        self.topic = topic
        self.settings = settings
        self.codec = settings.codec
        self._form, _, compression = settings.codec.partition("+")
        self._known = self._form in ("plain", "json", "msgpack") and compression in ("", "zstd")
        self._compressed = compression == "zstd"

    @classmethod
    async def of(cls, connection: UserConnection, key: bytes) -> TopicDecoder | None:
        """Return the decoder of a stream. None: it is no partition of a topic that the user may read."""
        found = PARTITION.fullmatch(key.decode("utf-8", "replace"))
        if found is None:
            return None
        (reply,) = await connection.poll(strings.get(key_of(found[1])))
        if not isinstance(reply, bytes):
            return None
        try:
            settings = read_settings(found[1], reply)
        except TopicError:
            return None
        return cls(found[1], settings) if int(found[2]) < (settings.partitions or 0) else None

    @classmethod
    async def shorteners(cls, connection: UserConnection, keys: Iterable[bytes]) -> list[Shortener]:
        """Return for each stream the function that shows its entries in a list. Each topic is read once."""
        known: dict[bytes, TopicDecoder | None] = {}
        found: list[Shortener] = []
        for key in keys:
            topic = key.rpartition(b":")[0]
            if topic not in known:
                known[topic] = await cls.of(connection, key)
            decoder = known[topic]
            found.append(decoder.short if decoder else payloads.short)
        return found

    @property
    def packed(self) -> bool:
        """Whether records are one field of their entries."""
        return self._known and self._form != "plain"

    def decode(self, entry: Entry, most: int = LARGEST) -> DecodedRecord:
        """Return the record of an entry. most: bytes of a record that are decoded."""
        if not self._known:
            shown = {text(name): _shown(value) for name, value in entry.pairs}
            return DecodedRecord(shown, [f"The console does not know the codec {text(self.codec)}: values are text."])
        return self._unpacked(entry, most) if self.packed else self._plain(entry)

    def short(self, entry: Entry) -> list[tuple[str, str]]:
        """Return the first fields of a record with the beginnings of their values, for a list."""
        if not self.packed:
            return payloads.short(entry)
        value = self.decode(entry, LISTED).value
        if not isinstance(value, dict):
            return payloads.short(entry)
        return [
            (name, payloads.clipped((each if isinstance(each, str) else _dumped(each)).encode("utf-8", "replace")))
            for name, each in list(value.items())[: payloads.FIELDS]
        ]

    def with_fields(self, entry: Entry, most: int = LISTED) -> Entry | None:
        """Return an entry with the fields of the packed record as text. None: the entry has them itself."""
        if not self.packed:
            return None
        value = self.decode(entry, most).value
        if not isinstance(value, dict):
            return None
        flat = [part.encode("utf-8", "replace") for name, each in value.items()
                for part in (name, each if isinstance(each, str) else _dumped(each))]  # fmt: skip
        return Entry(entry.id, flat)

    # -- the two forms ---------------------------------------------------------------------------------------------
    def _plain(self, entry: Entry) -> DecodedRecord:
        flat, _ = tracecontext.split(entry.flat)
        value: dict[str, Any] = {}
        problems = []
        for raw_name, raw in zip(flat[::2], flat[1::2], strict=True):
            name = text(raw_name)
            kind = self.settings.fields.get(raw_name.decode("utf-8", "replace"), "")
            value[name], problem = _typed(kind, raw)
            if problem:
                problems.append(f"{name}: {problem}")
        return DecodedRecord(value, problems)

    def _unpacked(self, entry: Entry, most: int) -> DecodedRecord:
        data = entry.get(FIELD)
        if data is None:
            return DecodedRecord(None, [f"The entry has no field {FIELD!r}: it was not written as {self.codec}."])
        try:
            if self._compressed:
                size = zstandard.frame_content_size(data)
                if not 0 <= size <= most:
                    shown = "an unknown size" if size < 0 else f"{size:,} bytes"
                    return DecodedRecord(None, [f"The record has {shown}; up to {most:,} bytes are decoded here."])
                data = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
            if len(data) > most:
                return DecodedRecord(None, [f"The record has {len(data):,} bytes; up to {most:,} are decoded here."])
            read: Callable[[bytes], Any] = msgspec.json.decode if self._form == "json" else msgspec.msgpack.decode
            value = _plainly(read(data), 0)
        except (zstandard.ZstdError, ValueError, TypeError, RecursionError, MemoryError) as error:
            return DecodedRecord(None, [f"The record can't be read as {self.codec}: {text(str(error))}"])
        return DecodedRecord(value, self._mismatches(value))

    def _mismatches(self, value: Any) -> list[str]:
        if not isinstance(value, dict):
            return ["The record is not an object with fields."]
        wrong = []
        for name, kind in self.settings.fields.items():
            given = value.get(name)
            expected = {"int": int, "float": (int, float), "bool": bool, "str": str}.get(kind)
            if given is None or expected is None:
                continue
            if not isinstance(given, expected) or (isinstance(given, bool) and kind != "bool"):  # type: ignore[arg-type]
                wrong.append(f"{text(name)}: not {kind}, which is its type in the settings of the topic")
        return wrong


def _typed(kind: str, raw: bytes) -> tuple[Any, str]:
    """Return the value of a field of a plain record for JSON, and the reason if it does not have its type."""
    if kind == "bytes":
        return {"hex": raw[:LARGEST].hex()}, ""
    shown = _shown(raw)
    wanted = _TYPES.get(kind)
    if wanted is None or not isinstance(shown, str):
        return shown, "" if isinstance(shown, str) else "not UTF-8"
    try:
        value = msgspec.convert(shown, wanted, strict=False)
    except (ValueError, TypeError, OverflowError):
        return shown, f"not {kind}, which is its type in the settings of the topic"
    if kind not in _NATIVE or (isinstance(value, float) and not _is_finite(value)):
        return shown, ""
    return value, ""


def _shown(raw: bytes) -> Any:
    try:
        return raw[:LARGEST].decode()
    except UnicodeDecodeError:
        return {"hex": raw[: LARGEST // 2].hex()}


def _is_finite(value: float) -> bool:
    return value - value == 0


def _plainly(value: Any, depth: int) -> Any:
    """Return a decoded value with the types of JSON only. Raises ValueError if it is nested too deeply."""
    if depth > DEEPEST:
        raise ValueError(f"more than {DEEPEST} levels")
    if isinstance(value, dict):
        return {_key(name): _plainly(each, depth + 1) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plainly(each, depth + 1) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return {"hex": bytes(value).hex()}
    if isinstance(value, msgspec.msgpack.Ext):
        return {"extension": value.code, "hex": bytes(value.data).hex()}
    if isinstance(value, float) and not _is_finite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def _key(name: Any) -> str:
    return name if isinstance(name, str) else bytes(name).hex() if isinstance(name, bytes | bytearray) else str(name)


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
