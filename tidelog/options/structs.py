"""Options as structures of msgspec, read from files or from keyword arguments.

All errors of one structure are reported together, each with its path. For an unknown name, the nearest known one is
suggested.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, Final, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from tidelog.operating.redaction import redacted
from tidelog.options.start import StartPosition
from tidelog.options.units import excerpt

S = TypeVar("S", bound=msgspec.Struct)

GUESSES: Final = 50  # unknown names for which a known one is suggested
NAMED: Final = 100  # known names that are compared with it


class Struct(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A set of options, one per field. ``__post_init__`` raises ValueError for options that contradict each other."""

    remedies: ClassVar[Mapping[str, str]] = {}  # by a name that is no option, but that users may expect: what to use


@dataclass
class Problems:
    """Errors, each with its path, such as ``flows.orders.connectors.in.retry``."""

    found: list[tuple[str, str]] = field(default_factory=list)
    guessed: int = 0

    def add(self, path: str, text: str) -> None:
        self.found.append((path, redacted(text)))

    def unknown(self, path: str, text: str, name: str, known: Iterable[str]) -> None:
        """Add an unknown name with a suggestion. Finding it takes time, so only the first GUESSES get one."""
        self.guessed += 1
        self.add(path, f"{text}; {nearest(name, known)}" if self.guessed <= GUESSES else text)

    def __bool__(self) -> bool:
        return bool(self.found)


class FromEnvironment(str):
    """Text from an environment variable. It is converted to a number or a boolean if the option has that type."""

    __slots__ = ()


def without_marks(value: Any) -> Any:
    """Return a copy with plain text in place of FromEnvironment, which codecs can't encode."""
    if isinstance(value, FromEnvironment):
        return str(value)
    if isinstance(value, dict):
        return {name: without_marks(each) for name, each in value.items()}
    return [without_marks(each) for each in value] if isinstance(value, list) else value


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: the nearest known name, or the known names."""
    names = list(islice(known, NAMED))
    near = difflib.get_close_matches(name[:100], names, 1)
    if near:
        return f"did you mean {near[0]!r}?"
    more = "" if len(names) < NAMED else " and others"
    return f"known are {', '.join(sorted(names))}{more}" if names else "there are none"


def read(kind: type[S], given: Mapping[str, Any], path: str, problems: Problems) -> S | None:
    """Convert options to their structure. Returns None if problems were added."""
    before = len(problems.found)
    fields = {each.encode_name: each for each in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in fields:
            remedy = getattr(kind, "remedies", {}).get(name)
            if remedy:
                problems.add(f"{path}.{name}", f"unknown option {name!r}: {remedy}")
            else:
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
        before = len(problems.found)
        for inner, each, where in _items(kind, value, path):
            _value(inner, each, where, problems)
        if len(problems.found) > before:
            return _BAD
        text = str(error)
        at = text.rpartition(" - at `$")
        if text.startswith("Invalid enum value") and (known := _words(kind)):
            text = f"{text}; {nearest(str(value), known)}"
        got = f", got {excerpt(value)}" if text.startswith("Expected") and " got " not in text else ""  # out of range
        problems.add(path + at[2].rstrip("`") if at[1] else path, (at[0] or text) + got)
        return _BAD


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _items(kind: Any, value: Any, path: str) -> Iterator[tuple[Any, Any, str]]:
    """Yield (type, value, path) of the items of a mapping or a list: msgspec does not name the key of a wrong value."""
    for one in _alternatives(kind):
        if get_origin(one) is dict and isinstance(value, Mapping):
            yield from ((get_args(one)[1], each, f"{path}.{name}") for name, each in value.items())
        elif get_origin(one) is list and isinstance(value, list):
            yield from ((get_args(one)[0], each, f"{path}[{number}]") for number, each in enumerate(value))


def _words(kind: Any) -> list[str]:
    """Return the texts that a type accepts, if it is a Literal."""
    return [str(each) for one in _alternatives(kind) if get_origin(one) is Literal for each in get_args(one)]


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _hook(kind: type, value: Any) -> Any:
    if issubclass(kind, StartPosition):
        return kind(value)
    return kind.read(value)  # type: ignore[attr-defined] # Duration, Size, ErrorPolicy
