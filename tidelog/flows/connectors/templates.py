"""Templates: names and other options that are filled from an event, such as ``orders-{day}/{customer|unknown}``.

    {customer.id}      the field ``id`` in the field ``customer`` of the value; ``{items.0.sku}`` for an item of a list
    {"first name"}     a field whose name contains other characters than letters, digits, ``_``, ``-``, ``@`` and ``$``
    {value}            the whole value; ``{value.day}`` for a field whose name has another meaning in a template
    {meta.headers.id}  the same in the metadata
    {day} {hour}       the time of the event's arrival, in UTC: ``2026-11-27`` (also ``{date}``), and ``00`` to ``23``
    {time:%Y/%m/%d}    the same time in another format; ``{created:%Y}`` for a time in the value
    {customer|none}    a default, for a value that is missing, null, or an empty text
    {{ }}              braces

Rule 1: Errors that are independent of the event are raised by the constructor, so ``tidelog flow check`` reports them.
Rule 2: An event without a value for a placeholder fails, unless there is a default. It is rejected, because another
        attempt would fail as well.
Rule 3: Each value and each default is escaped for its destination (``destinations``). The rest of the text is not.

Decision: a template is compiled to one function for each placeholder. The text of a time is cached until the next
second, because formatting takes ten times as long as the rest of a template.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event

LONGEST: Final = 16_384  # characters of a filled template: a limit on what an event can create
NAMED: Final = 8  # fields in the text of an error

Escape: TypeAlias = Callable[[str], str]  # returns a value's text for its destination; raises RejectError
Getter: TypeAlias = Callable[[Any, Mapping[str, Any], int], Any]  # value, meta, time in ns; None: it is missing
Filler: TypeAlias = Callable[[Any, Mapping[str, Any], int], str]

_PARTS: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_PLACEHOLDER: Final = re.compile(r'((?:"[^"]*"|[^":|])+)(?::([^|]*))?(?:\|(.*))?', re.DOTALL)
_SEGMENT: Final = re.compile(r'"([^"]+)"|([\w@$-]+)')
_DIRECTIVES: Final = frozenset("YmdHMSfjGVuy%")  # of strftime: those that are the same on each machine
_TIMES: Final = {"day": "%Y-%m-%d", "date": "%Y-%m-%d", "hour": "%H"}
_SECOND: Final = 1_000_000_000  # ns


class Template:
    """A parsed template. Raises ValueError if its syntax or one of its names is wrong.

    ``escape`` converts each value, and ``check`` verifies the whole text. Both raise RejectError.
    """

    def __init__(self, text: str, escape: Escape = str, check: Callable[[str], None] | None = None) -> None:
        self.text = text
        self.check = check
        fillers: list[Filler] = []
        texts: list[str] = [""]  # the literal text before each placeholder, and after the last one
        at = 0
        for found in _PARTS.finditer(text):
            texts[-1] += text[at : found.start()]
            at = found.end()
            if found[0] in ("{{", "}}"):
                texts[-1] += found[0][0]
            elif found[1] is None:
                raise ValueError(f"{text!r}: a single {found[0]!r}; write {{name}} for a placeholder, {{{{ for a brace")
            else:
                fillers.append(_filler(text, found[1], escape))
                texts.append("")
        texts[-1] += text[at:]
        self.fixed = None if fillers else texts[0]  # the text of a template without placeholders; None: it has some
        self.prefix = texts[0]  # the text before the first placeholder
        self._run = _joined(texts, fillers)

    def fill(self, event: Event) -> str:
        """Return the text for an event. Raises RejectError if a value is missing or can't be used."""
        found = self._run(event.value, event.meta, event.ingest_ns)
        return found if self.check is None and len(found) <= LONGEST and found.isascii() else self._checked(found)

    def fill_from(self, value: Any, meta: Mapping[str, Any], ingest_ns: int) -> str:
        """Return the text for the parts of an event. ``ingest_ns``: the time of its arrival in ns; 0: now."""
        return self._checked(self._run(value, meta, ingest_ns))

    def _checked(self, found: str) -> str:
        if not found.isascii():
            try:
                found.encode()
            except UnicodeEncodeError as error:
                raise RejectError(f"{self.text!r}: {found!r:.100} can't be encoded: {error}") from None
        if len(found) > LONGEST:
            raise RejectError(f"{self.text!r}: the text has {len(found)} characters: at most {LONGEST} are allowed")
        if self.check is not None and self.fixed is None:
            self.check(found)
        return found


def filled_name(template: Template, event: Event) -> str:
    """Return a name for an event. Raises RejectError if it is empty, or a value is missing."""
    found = template.fill(event)
    if not found:
        raise RejectError(f"{template.text!r}: the name is empty")
    return found


def fixed_text(text: str) -> str:
    """Return the text of a template without placeholders. Raises ValueError if it has some, or is not valid."""
    fixed = Template(text).fixed
    if fixed is None:
        raise ValueError(f"{text!r}: only a sink fills placeholders; write {{{{ and }}}} for braces")
    return fixed


def template_errors(options: Any, *, fixed: bool = False) -> Iterator[tuple[str, str]]:
    """Yield (option, error) for the templates in the options of a connector. ``fixed``: placeholders are errors."""
    for name in options.templates:
        given = getattr(options, name)
        texts = given.values() if isinstance(given, Mapping) else [given] if isinstance(given, str) else given or ()
        for text in texts:
            try:
                (fixed_text if fixed else Template)(text)
            except ValueError as error:
                yield name, str(error)


# -- compiling -------------------------------------------------------------------------------------------------
def _joined(texts: Sequence[str], fillers: Sequence[Filler]) -> Filler:
    before = texts[0]
    if not fillers:
        return lambda value, meta, ns: before  # noqa: ARG005 - all fillers have three arguments
    if len(fillers) == 1:
        first, after = fillers[0], texts[1]
        return lambda value, meta, ns: f"{before}{first(value, meta, ns)}{after}"
    if len(fillers) == 2:
        (first, second), (_, middle, after) = fillers, texts
        return lambda value, meta, ns: f"{before}{first(value, meta, ns)}{middle}{second(value, meta, ns)}{after}"
    pairs = tuple(zip(fillers, texts[1:], strict=True))

    def join(value: Any, meta: Mapping[str, Any], ns: int) -> str:
        found = before
        for fill, after in pairs:
            found += fill(value, meta, ns) + after
        return found

    return join


def _filler(text: str, inner: str, escape: Escape) -> Filler:
    """Compile a placeholder. Raises ValueError if it is not valid."""
    found = _PLACEHOLDER.fullmatch(inner)
    path = None if found is None else _path(found[1])
    if found is None or path is None:
        raise ValueError(
            f"{text!r}: {{{inner}}} is not a placeholder: write {{name}}, {{meta.name}}, {{day}}, or {{name|default}}"
        )
    form, default = found[2], found[3]
    if form is not None:
        _check_format(text, form)
    if default:
        try:
            default = escape(default)
        except RejectError as error:
            raise ValueError(f"{text!r}: {{{inner}}}: the default {error}") from None
    root = path[0] if not found[1].startswith('"') else ""
    if root in _TIMES or root == "time":
        if len(path) > 1:
            raise ValueError(
                f"{text!r}: {{{inner}}}: {root} is the time of the event; for a field, write {{value.{found[1]}}}"
            )
        if root == "time" and not form:
            raise ValueError(
                f"{text!r}: {{{inner}}} has no format: write {{time:%H:%M}} for the time of the event, or"
                " {value.time} for a field"
            )
        if root != "time" and form is not None:
            raise ValueError(f"{text!r}: {{{inner}}}: {root} has a format of its own; use {{time:{form}}}")
        return _arrival(escape, _TimeText(form or _TIMES[root]))
    if root == "meta" and len(path) == 1:
        raise ValueError(f"{text!r}: {{{inner}}}: name a value of the metadata, such as {{meta.key}}")
    return _field(text, inner, escape, path, form, default)


def _path(text: str) -> tuple[str, ...] | None:
    """Return the segments of a dotted path; None: it is not valid."""
    found: list[str] = []
    at = 0
    while True:
        segment = _SEGMENT.match(text, at)
        if segment is None:
            return None
        found.append(segment[1] or segment[2])
        at = segment.end()
        if at == len(text):
            return tuple(found)
        if text[at] != ".":
            return None
        at += 1


def _check_format(text: str, form: str) -> None:
    directives = [found[1] for found in re.finditer(r"%(.?)", form, re.DOTALL)]
    for each in directives:
        if each not in _DIRECTIVES or not each:
            known = " ".join(f"%{one}" for one in sorted(_DIRECTIVES))
            raise ValueError(f"{text!r}: the format {form!r} contains %{each}; known are {known}")
    if not directives:
        raise ValueError(f"{text!r}: the format {form!r} has no directive; write {{time:%Y-%m-%d}} for a time")


def _arrival(escape: Escape, clock: _TimeText) -> Filler:
    at, now = clock.at, time.time_ns
    if escape is str:
        return lambda value, meta, ns: at(ns or now())  # noqa: ARG005
    return lambda value, meta, ns: escape(at(ns or now()))  # noqa: ARG005


def _field(
    text: str, inner: str, escape: Escape, path: tuple[str, ...], form: str | None, default: str | None
) -> Filler:
    in_meta = path[0] == "meta" and not inner.startswith('"')
    names = path[1:] if in_meta or (path[0] == "value" and not inner.startswith('"')) else path
    clock = None if form is None else _TimeText(form)
    plain = escape is str

    def other(found: Any, value: Any, meta: Mapping[str, Any]) -> str:
        """Return the text of a value that is not a text, or is empty."""
        if (found is None or found == "") and default is not None:
            return default
        if found is None:
            raise RejectError(_missing(text, inner, meta if in_meta else value, in_meta=in_meta))
        try:
            return escape(_text(found) if clock is None else clock.of(found))
        except ValueError as error:
            raise RejectError(f"{text!r}: {{{inner}}} {error}") from None

    if len(names) == 1 and clock is None:  # the most frequent form
        (name,) = names

        def fill_one(value: Any, meta: Mapping[str, Any], ns: int) -> str:  # noqa: ARG001
            source = meta if in_meta else value
            found = source.get(name) if type(source) is dict else _step(source, name)
            if type(found) is str and found:
                return found if plain else escape(found)
            return other(found, value, meta)

        return fill_one

    def fill(value: Any, meta: Mapping[str, Any], ns: int) -> str:  # noqa: ARG001
        found: Any = meta if in_meta else value
        for name in names:
            found = found.get(name) if type(found) is dict else _step(found, name)
        return other(found, value, meta)

    return fill


def _step(found: Any, name: str) -> Any:
    if isinstance(found, Mapping):
        return found.get(name)
    if isinstance(found, (list, tuple)) and name.isdecimal() and len(name) < 10 and int(name) < len(found):
        return found[int(name)]
    return None


def _missing(text: str, inner: str, found: Any, *, in_meta: bool) -> str:
    where = "the metadata" if in_meta else "the value"
    if isinstance(found, Mapping):
        names = ", ".join(str(each)[:40] for each in list(found)[:NAMED]) or "no fields"
        has = f"{where} has {names}" + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")
    else:
        has = f"{where} is {_kind(found)}"
    name = inner.partition("|")[0]
    return f"{text!r}: {{{inner}}} is missing: {has}. For a default, write {{{name}|...}}"


def _kind(found: Any) -> str:
    if found is None:
        return "null"
    return "a list" if isinstance(found, list) else f"a {type(found).__name__}"


def _text(found: Any) -> str:
    """Return the text of a plain value. Raises ValueError if it has none."""
    if isinstance(found, str):
        return found
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, (int, float)):
        return str(found)
    if isinstance(found, (bytes, bytearray)):
        try:
            return found.decode()
        except UnicodeDecodeError:
            raise ValueError("is not UTF-8") from None
    if isinstance(found, datetime):
        return found.isoformat()
    raise ValueError(f"is {'an object' if isinstance(found, Mapping) else _kind(found)}, not text or a number")


class _TimeText:
    """Formats times in UTC, and caches the text of the last one."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._unit = 1_000 if "%f" in form else _SECOND  # the times within one unit have the same text
        self._last: int | None = None  # the unit of the cached text; times before 1970 are negative
        self._text = ""

    def at(self, ns: int) -> str:
        """Return the text of a time in ns since 1970."""
        unit = ns // self._unit
        if unit != self._last:
            seconds, rest = divmod(ns, _SECOND)
            self._text = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000).strftime(self._form)
            self._last = unit
        return self._text

    def of(self, found: Any) -> str:
        """Return the text of a time in a value: seconds since 1970, or ISO 8601. Raises ValueError."""
        try:
            if isinstance(found, str):
                found = datetime.fromisoformat(found)
            if isinstance(found, datetime):
                found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
                return str(found.astimezone(UTC).strftime(self._form))
            if isinstance(found, (int, float)) and not isinstance(found, bool):
                return self.at(int(found * _SECOND))
        except (ValueError, OverflowError, OSError):
            pass
        raise ValueError(f"is {found!r:.60}, not a time: seconds since 1970, or ISO 8601") from None
