"""Entries as lines: lossless JSON, and text for people.

The JSON form has one entry per line::

    {"id": "1486475519747.0", "fields": {"sensor": "01", "temperature": "35.6"}}
    {"id": "1486475519747.1", "fields": [["tag", "a"], ["tag", "b"]]}        a field occurs twice
    {"id": "1486475519747.2", "fields": {"image": {"base64": "iVBORw0="}}}   a value that is not UTF-8

``tidelog dump`` writes this form, and ``tidelog load --format dump`` reads it.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from tidelog.client.entries import Entry

Pair = tuple[str | bytes, str | bytes]


def to_json(entry: Entry) -> str:
    """Return the entry as one line of JSON, without a line end."""
    pairs = [(_json_value(field), _json_value(value)) for field, value in entry.pairs]
    names = [name for name, _ in pairs if isinstance(name, str)]
    plain = len(set(names)) == len(pairs)  # every name is text, and none occurs twice
    fields: object = {str(name): value for name, value in pairs} if plain else pairs
    return json.dumps({"id": str(entry.id), "fields": fields}, ensure_ascii=False, separators=(",", ":"))


def fields_from_json(row: Any) -> list[Pair]:
    """Return the fields of a parsed object that ``to_json`` wrote. Raises ValueError for any other object."""
    fields = row.get("fields") if isinstance(row, dict) else None
    if isinstance(fields, dict):
        fields = list(fields.items())
    if not isinstance(fields, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in fields):
        raise ValueError('no "fields" as tidelog dump writes them')
    return [(_from_json_value(name), _from_json_value(value)) for name, value in fields]


def _json_value(raw: bytes) -> str | dict[str, str]:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def _from_json_value(value: object) -> str | bytes:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"bad base64: {error}") from None
    raise ValueError(f"neither text nor base64: {json.dumps(value)}")


def to_text(entry: Entry) -> str:
    """Return the time, the ID, and the ``field=value`` pairs. Characters that a terminal cannot show are escaped."""
    try:
        when = entry.id.time.strftime("%Y-%m-%d %H:%M:%S.") + f"{entry.id.ms % 1000:03}"
    except (ValueError, OverflowError):  # beyond the year 9999
        when = "-"
    pairs = [f"{_word(field)}={_word(value)}" for field, value in entry.pairs]
    return f"{when:<23}  {entry.id}  {' '.join(pairs)}"


def _word(raw: bytes) -> str:
    text = raw.decode("utf-8", "backslashreplace")
    if text and text.isprintable() and not any(mark in text for mark in ' ="'):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def printable(text: str) -> str:
    """Escape all characters that a terminal cannot show, including line ends."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
