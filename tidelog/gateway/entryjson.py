"""Entries as JSON, and JSON as entries.

    {"id": "1700000000000.0", "fields": {"city": "Oslo", "photo": {"base64": "/9j/4A=="}}}
    {"id": "1700000000000.0", "fields": [["tag", "new"], ["tag", "red"]]}

Rule 1: a value is a string if its bytes are UTF-8, or else ``{"base64": "..."}``.
Rule 2: ``fields`` is an object, or a list of pairs if a field is repeated or a name is not UTF-8.
Rule 3: a number in a request is stored as it is written. Other values are refused.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

import msgspec

from tidelog.client.entries import Entry, StreamId
from tidelog.gateway.errors import ProblemError
from tidelog.gateway.limits import ENTRIES, ENTRY, FIELDS

_NUMBER: Final = frozenset(b"-0123456789")
_TEXT: Final = msgspec.json.Decoder(str)
_BYTES: Final = '{"base64": "..."}'
_FORM: Final = '{"fields": {"NAME": "VALUE"}}'


# -- to JSON -------------------------------------------------------------------------------------------------
def entry_object(entry: Entry) -> dict[str, Any]:
    """Return an entry as an object for JSON."""
    size = sum(map(len, entry.flat))
    if size > ENTRY:
        return {"id": str(entry.id), "omitted": size}
    return {"id": str(entry.id), "fields": fields_object(entry.flat)}


def entry_json(entry: Entry) -> bytes:
    return msgspec.json.encode(entry_object(entry))


def fields_object(flat: tuple[bytes, ...]) -> Any:
    """Return fields and values as an object or a list of pairs (Rule 2)."""
    names = [json_value(name) for name in flat[::2]]
    values = [json_value(value) for value in flat[1::2]]
    if all(type(name) is str for name in names) and len(set(names)) == len(names):
        return dict(zip(names, values, strict=True))
    return list(zip(names, values, strict=True))


def json_value(raw: bytes) -> str | dict[str, str]:
    """Return a name or value for JSON (Rule 1)."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


# -- from JSON -----------------------------------------------------------------------------------------------
class EntryBody(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of a request."""

    fields: msgspec.Raw


class Base64Body(msgspec.Struct, forbid_unknown_fields=True):
    """A value that is not UTF-8."""

    base64: str


_ENTRY: Final = msgspec.json.Decoder(EntryBody)
_MANY: Final = msgspec.json.Decoder(list[EntryBody])
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_PAIRS: Final = msgspec.json.Decoder(list[tuple[msgspec.Raw, msgspec.Raw]])
_BASE64: Final = msgspec.json.Decoder(Base64Body)

Flat = list[bytes]  # field, value, field, value, ...


def read_json(body: bytes) -> list[Flat]:
    """Return the entries of a JSON body: an object, or a list of objects. Raises ProblemError."""
    many = body.lstrip()[:1] == b"["
    try:
        found = _MANY.decode(body) if many else [_ENTRY.decode(body)]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _wrong("the body", error) from None
    check_number(len(found))
    total = _Total()
    return [_flat(each.fields, f"entry {at}" if many else "the entry", total) for at, each in enumerate(found)]


def read_lines(body: bytes) -> list[Flat]:
    """Return the entries of an NDJSON body: an object in each line. Raises ProblemError."""
    lines = [(at, line) for at, line in enumerate(body.split(b"\n"), 1) if line.strip()]
    check_number(len(lines))
    found, total = [], _Total()
    for at, line in lines:
        try:
            found.append(_flat(_ENTRY.decode(line).fields, f"line {at}", total))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise _wrong(f"line {at}", error) from None
    return found


def check_number(number: int) -> None:
    if not number:
        raise ProblemError(422, "invalid-body", f"The body has no entry. Send {_FORM}, or a list of such objects.")
    if number > ENTRIES:
        raise ProblemError(
            413, "too-many-entries", f"The body has {number} entries. A request can have {ENTRIES}: send several."
        )  # fmt: skip


class _Total:
    """Counts the fields of a request."""

    fields = 0

    def add(self, number: int) -> None:
        self.fields += number
        if self.fields > FIELDS:
            raise ProblemError(413, "too-many-fields", f"The entries of a request can have {FIELDS} fields in total.")


def _flat(fields: msgspec.Raw, where: str, total: _Total) -> Flat:
    raw = bytes(fields)
    try:
        if raw[:1] == b"{":
            named = _OBJECT.decode(raw)
            total.add(len(named))
            flat = [word for name, value in named.items() for word in (name.encode(), _value(value))]
        else:
            pairs = _PAIRS.decode(raw)
            total.add(len(pairs))
            flat = [_value(word) for pair in pairs for word in pair]
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _wrong(where, error) from None
    if not flat:
        raise ProblemError(422, "invalid-body", f"{where}: an entry needs at least one field.")
    return flat


def _value(value: msgspec.Raw) -> bytes:
    raw = bytes(value)
    first = raw[:1]
    if first == b'"':
        return _TEXT.decode(raw).encode()
    if first == b"{":
        try:
            return base64.b64decode(_BASE64.decode(raw).base64, validate=True)
        except (msgspec.ValidationError, binascii.Error):
            raise ValueError(f"a value that is an object must be {_BYTES}; send nested JSON as a string") from None
    if raw[0] in _NUMBER:
        return raw.strip()
    shown = raw[:5].decode("ascii", "replace")
    raise ValueError(f"a value must be a string, a number or {_BYTES}, not {shown}")


def _wrong(where: str, error: Exception) -> ProblemError:
    why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    code = 422 if isinstance(error, msgspec.ValidationError | ValueError) and not _malformed(error) else 400
    return ProblemError(code, "invalid-body", f"{where}: {why}. An entry is {_FORM}.")


def _malformed(error: Exception) -> bool:
    syntax = isinstance(error, msgspec.DecodeError | UnicodeDecodeError)
    return syntax and not isinstance(error, msgspec.ValidationError)


def id_json(found: StreamId | None) -> str | None:
    return None if found is None else str(found)
