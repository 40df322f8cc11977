"""Options of connectors and operators: structures of msgspec, read from files or keyword arguments.

All problems of one thing are found at once, each with its path, an unknown name with the nearest known one.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, TypeVar, Union, get_args, get_origin

import msgspec

from tidelog.operating.redaction import hidden

S = TypeVar("S", bound=msgspec.Struct)

LONGEST: Final = 100 * 366 * 86400.0  # s: a hundred years
GUESSES: Final = 50  # unknown names of which the nearest known one is told
NAMED: Final = 100  # names among which it is looked for
WRITTEN: Final = 60  # characters of a duration or a size

_DURATION: Final = re.compile(r"\s*+(\d++(?:\.\d++)?)\s*+(ns|us|ms|s|m|h|d)\s*+", re.ASCII)  # one part of it
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE: Final = re.compile(r"(\d+)\s*(b|kb|mb|gb)?", re.IGNORECASE)
_BYTES: Final = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}


class Duration(float):
    """Seconds, written as ``200ms``, ``5s``, ``1m30s``, or as a number of seconds."""

    @classmethod
    def read(cls, given: object) -> Duration:
        """ValueError: it is none."""
        if isinstance(given, (int, float)) and not isinstance(given, bool) and 0 <= given <= LONGEST:
            return cls(given)
        if isinstance(given, str) and len(given) <= WRITTEN:
            seconds, at = 0.0, 0
            while found := _DURATION.match(given, at):
                seconds += float(found[1]) * _SECONDS[found[2]]
                at = found.end()
            if 0 < at == len(given) and seconds <= LONGEST:
                return cls(seconds)
        raise ValueError(f"{_excerpt(given)} is no duration: give one as 200ms, 5s, 1m30s")


class Size(int):
    """Bytes, written as ``64KB``, ``1MB``, or as a number."""

    @classmethod
    def read(cls, given: object) -> Size:
        """ValueError: it is none."""
        if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
            return cls(given)
        if isinstance(given, str) and len(given) <= WRITTEN and (found := _SIZE.fullmatch(given.strip())):
            return cls(int(found[1]) * _BYTES[(found[2] or "").lower()])
        raise ValueError(f"{_excerpt(given)} is no size: give one as 64KB, 1MB")


def _excerpt(given: object) -> str:
    shown = repr(given[:WRITTEN] if isinstance(given, str) else given)
    return shown if len(shown) <= 2 * WRITTEN else f"{shown[:WRITTEN]}..."


class Struct(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Options of something. Fields are options; ``__post_init__`` raises ValueError for what doesn't fit."""


@dataclass
class Problems:
    """What is wrong, by path: ``flows.orders.connectors.in.retry``."""

    found: list[tuple[str, str]] = field(default_factory=list)
    guessed: int = 0

    def add(self, path: str, text: str) -> None:
        self.found.append((path, hidden(text)))

    def unknown(self, path: str, text: str, name: str, known: Iterable[str]) -> None:
        """Something that is not known, with the nearest that is. That takes time: not for any number of them."""
        self.guessed += 1
        self.add(path, f"{text}; {nearest(name, known)}" if self.guessed <= GUESSES else text)

    def __bool__(self) -> bool:
        return bool(self.found)


class FromEnvironment(str):
    """Text that was given outside of the file, where all is text: a number or true and false where one is wanted."""

    __slots__ = ()


def without_marks(value: Any) -> Any:
    """The same with plain text in place of FromEnvironment, which no codec knows."""
    if isinstance(value, FromEnvironment):
        return str(value)
    if isinstance(value, dict):
        return {name: without_marks(each) for name, each in value.items()}
    return [without_marks(each) for each in value] if isinstance(value, list) else value


def nearest(name: str, known: Iterable[str]) -> str:
    """What to say of an unknown name: the nearest known one, or all of them, if they are not too many."""
    names = list(islice(known, NAMED))
    near = difflib.get_close_matches(name[:100], names, 1)
    if near:
        return f"did you mean {near[0]!r}?"
    more = "" if len(names) < NAMED else " and others"
    return f"known are {', '.join(sorted(names))}{more}" if names else "there are none"


def read(kind: type[S], given: Mapping[str, Any], path: str, problems: Problems) -> S | None:
    """The structure that ``given`` means. None: problems were added."""
    before = len(problems.found)
    fields = {each.encode_name: each for each in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in fields:
            problems.unknown(f"{path}.{name}", f"unknown option {name!r}", str(name), fields)
            continue
        one = _value(fields[name].type, value, f"{path}.{name}", problems)
        if one is not _BAD:
            values[fields[name].name] = one
    for name, each in fields.items():
        if name not in given and each.required:
            problems.add(path, f"the option {name!r} is missing")
    if len(problems.found) > before:
        return None
    try:
        return kind(**values)
    except ValueError as error:
        problems.add(path, str(error))
        return None


_BAD: Final = object()


def _value(kind: Any, value: Any, path: str, problems: Problems) -> Any:
    structure = next((each for each in _alternatives(kind) if _is_struct(each)), None)
    if structure is not None and isinstance(value, Mapping):
        made = read(structure, value, path, problems)
        return _BAD if made is None else made
    if get_origin(kind) is list and isinstance(value, list) and _is_struct(get_args(kind)[0]):
        each_kind = get_args(kind)[0]
        items = [_value(each_kind, each, f"{path}[{number}]", problems) for number, each in enumerate(value)]
        return _BAD if any(each is _BAD for each in items) else items
    strict = not isinstance(value, FromEnvironment)
    try:
        return msgspec.convert(without_marks(value), kind, strict=strict, dec_hook=_hook)
    except msgspec.ValidationError as error:
        text = str(error)
        at = text.rpartition(" - at `$")
        problems.add(path + at[2].rstrip("`") if at[1] else path, at[0] or text)
        return _BAD


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _hook(kind: type, value: Any) -> Any:
    if issubclass(kind, (Duration, Size)):
        return kind.read(value)
    raise NotImplementedError(kind)
