"""The fields of an event as a form, and the edited fields as bytes.

A value has one of three forms: ``json`` is indented JSON, stored compactly; ``text`` is text, stored as it is; ``hex``
is hexadecimal, for all other bytes. A field that is not edited keeps its bytes.

Rule: browsers send line ends as CR LF. A value that contains a CR itself is therefore shown in hex.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidelog.client.entries import Entry
from tidelog.console import payloads
from tidelog.console.errors import PageError
from tidelog.console.infotext import text

EDITABLE: Final = 128 * 1024  # bytes of an event that can be edited
FIELDS: Final = 200  # fields of such an event
FORMS: Final = ("text", "json", "hex")
ROWS: Final = 14  # lines of a text field that are visible, at most

Pairs = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True)
class EditableField:
    """A field of the form."""

    name: str  # in ``name_form``
    value: str  # in ``form``
    name_form: str  # text or hex
    form: str  # one of FORMS
    rows: int  # lines that are visible


@dataclass(frozen=True)
class FieldDifference:
    """A field that an edit has changed. None: it has been added or removed."""

    name: str
    before: str | None
    after: str | None


def form_of(entry: Entry) -> list[EditableField]:
    """Return the fields of an event. Raises PageError if it is too large."""
    size = sum(map(len, entry.flat))
    if size > EDITABLE or len(entry.flat) > 2 * FIELDS:
        raise PageError(413, f"This event has {size:,} bytes in {len(entry.flat) // 2:,} fields. Events up to"
                             f" {EDITABLE:,} bytes and {FIELDS} fields can be edited here.")  # fmt: skip
    return [_field(name, value) for name, value in entry.pairs]


def _field(name: bytes, value: bytes) -> EditableField:
    form, shown = "text", value.decode() if _is_text(value) else ""
    if not _is_text(value):
        form, shown = "hex", value.hex(" ")
    elif (indented := _indented(shown)) is not None:
        form, shown = "json", indented
    plain = _is_text(name) and b"\n" not in name
    return EditableField(
        name.decode() if plain else name.hex(), shown, "text" if plain else "hex", form,
        min(ROWS, 1 + shown.count("\n") + len(shown) // 80),
    )  # fmt: skip


def _is_text(raw: bytes) -> bool:
    """Return whether a form returns these bytes as they are."""
    try:
        return all(each >= " " or each in "\n\t" for each in raw.decode())
    except UnicodeDecodeError:
        return False


def _indented(value: str) -> str | None:
    """Return JSON with indentation, None if the value is not JSON, or if compact JSON would change it."""
    if value[:1] not in ("{", "["):
        return None
    try:
        found = json.loads(value)
        return json.dumps(found, indent=2, ensure_ascii=False) if _compact(found) == value else None
    except (ValueError, RecursionError):
        return None


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def parse(given: Mapping[str, Sequence[str]]) -> list[tuple[bytes, bytes]]:
    """Return the pairs of a form: ``field``, ``nameform``, ``value`` and ``valueform`` of each field. Raises PageError.

    A field without name and value is left out, so a field is removed by emptying its name and its value.
    """
    columns = [given[name] for name in ("field", "nameform", "value", "valueform")]
    if len({len(each) for each in columns}) != 1 or len(columns[0]) > FIELDS + 100:
        raise PageError(400, "The form is not complete. Open it again.")
    pairs = []
    for name, name_form, value, form in zip(*columns, strict=True):
        if name or value:
            pairs.append((_bytes(name, name_form, name), _bytes(value, form, name)))
    if sum(len(name) + len(value) for name, value in pairs) > EDITABLE:
        raise PageError(413, f"An edited event can have at most {EDITABLE:,} bytes.")
    return pairs


def _bytes(value: str, form: str, name: str) -> bytes:
    value = value.replace("\r\n", "\n")
    try:
        if form == "hex":
            return bytes.fromhex(value)
        if form == "json":
            found = json.loads(value)
            return _compact(found).encode()
        if form == "text":
            return value.encode()
    except (ValueError, RecursionError) as error:
        kind = "hexadecimal" if form == "hex" else "valid JSON" if form == "json" else "valid text"
        raise PageError(400, f"The field {text(name)!r} is not {kind}: {error}") from None
    raise PageError(400, f"The field {text(name)!r} has no form {text(form)!r}.")


def differences(before: Pairs, after: Pairs) -> list[FieldDifference]:
    """Return the fields that differ. Of a repeated name, the occurrences are compared in order."""
    old, new = _numbered(before), _numbered(after)
    return [
        FieldDifference(text(key[0]), _shown(old.get(key)), _shown(new.get(key)))
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    ]


def _numbered(pairs: Pairs) -> dict[tuple[bytes, int], bytes]:
    found: dict[tuple[bytes, int], bytes] = {}
    for name, value in pairs:
        at = 0
        while (name, at) in found:
            at += 1
        found[name, at] = value
    return found


def _shown(value: bytes | None) -> str | None:
    return None if value is None else payloads.long(value)
