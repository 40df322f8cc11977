"""The types to which a field of a topic can change: those that can decode the stored values.

    plain    values are text: an integer can be read as float or decimal, all types except bytes as str, all as bytes
    packed   numbers can be read as wider numbers, texts as str, everything as a union that contains its type

Rule 1: a field that the newest entry lacks was removed from the record type, and no program writes it. It can change to
        any type.
Rule 2: the partition key keeps the bytes of its values; otherwise keys would move to other partitions.
Rule 3: a union is given by its members, ``int|str``. The settings contain it as ``json``, like every type that is not a
        scalar.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidelog.codecs.recordtypes import KINDS

JSON: Final = "json"  # the name in the settings for every type that is not a scalar
NULL: Final = ("null", "none")  # members of a union that are ignored
KEYS: Final = ("str", "int", "bytes", "uuid")  # kinds that a partition key may have
_NUMBERS: Final[dict[str, set[str]]] = {"int": {"float", "decimal"}, "float": {"decimal"}}
_AS_TEXT: Final[dict[str, set[str]]] = {kind: {"str"} for kind in ("uuid", "decimal", "date", "time", "timedelta")}
#: By codec format and kind: the other kinds that can decode its values.
_WIDER: Final[Mapping[str, Mapping[str, set[str]]]] = {
    "plain": {kind: (_NUMBERS.get(kind, set()) | {"str", "bytes"}) - {kind} for kind in KINDS if kind != "bytes"},
    "json": _NUMBERS | _AS_TEXT | {"datetime": {"str"}},
    "msgpack": _NUMBERS | _AS_TEXT,
}


def judged(codec: str, there: str, wanted: str, is_key: bool, removed: bool) -> tuple[str, str]:
    """Return the new kind of a field, as in the settings, and the reason if the change is impossible, otherwise "".

    ``there``: its current kind. ``is_key``: whether it is the partition key. ``removed``: the newest entry lacks it.
    """
    members, wrong = _members(wanted)
    if wrong:
        return "", f"{wrong!r} is no type: one of {', '.join(KINDS)}, or a union such as int|str"
    plain = codec == "plain"
    if plain and (len(members) > 1 or members == [JSON]):
        return "", "the codec plain has no unions, nor anything else that is not one scalar"
    kind = members[0] if len(members) == 1 else JSON
    if is_key and kind not in KEYS:
        return "", f"it is the partition key, which must be {', '.join(KEYS[:-1])} or {KEYS[-1]}"
    if kind == there or (removed and not is_key):
        return kind, ""
    reason = _unreadable(codec, there, members)
    if reason and not is_key:
        reason += (
            ". Give the new field another name; or take this one out of the record type: once the newest entry lacks"
            " it, it may become anything"
        )
    return kind, reason


def remedy(name: str, codec: str, field: str, there: str, wanted: str, is_key: bool) -> str:
    """Return the remedy if a program declares a field with another type, as a part of a sentence."""
    command = f"tidelog topics alter {name} --field"
    if wanted == JSON and codec != "plain" and not is_key:
        return f"{command} '{field}={there}|...' with the union that you declare, which must have {there}"
    _, reason = judged(codec, there, wanted, is_key, removed=False)
    if not reason:
        return f"{command} {field}={wanted}"
    if is_key:
        return "a topic of another name: it is the partition key"
    return f"another name for the field; or {command} {field}={wanted}, if programs had taken it out before"


def _members(wanted: str) -> tuple[list[str], str]:
    """Return the types of a union without null, or a single type, and the first name that is not a type."""
    found = [part.strip().lower() for part in wanted.split("|")]
    members = [part for part in dict.fromkeys(found) if part not in NULL]
    wrong = next((part for part in members if part not in (*KINDS, JSON)), None)
    return members, wrong if wrong is not None else "" if members else wanted or "nothing"


def _unreadable(codec: str, there: str, members: list[str]) -> str:
    """Return the reason why stored values can't be read as one of these types; "" if they can."""
    form = codec.partition("+")[0]
    readable = {there, *_WIDER[form].get(there, ())}
    if there == JSON:
        return "it is json, of which the server knows no more, so nobody knows whether what is stored could be read"
    if not readable.isdisjoint(members):
        return ""
    if members == [JSON]:
        return f"json is any type: give the union, such as {there}|str, so that it is known to have {there}"
    possible = sorted(readable - {there}) + ([f"a union with {there}"] if form != "plain" else [])
    listed = f"only as {', '.join(possible)}" if possible else "as nothing else"
    return f"it is {there}: what is stored can't be read as {'|'.join(members)} with the codec {codec}, {listed}"
