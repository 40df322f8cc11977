"""Functions of times. A time is a number: seconds since 1970 in UTC.

Rule: Formats are those of ``strftime`` in C. A format is checked when the expression is compiled, so a wrong directive
is no error of an event.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidelog.flows.expressions.ambient import now_ns
from tidelog.flows.expressions.declare import STRING, Kind, function
from tidelog.options.units import Duration

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_READ: Final = frozenset("aAbBcdfGHIjmMpSuUVwWxXyYzZ%")  # directives of strptime
_WRITTEN: Final = _READ | frozenset("CDeFghklnrRTt")
# and of strftime, in glibc, musl, and macOS, without %s, which ignores the zone of the time
_YEARS: Final = ("%Y", "%y", "%G", "%c", "%x")  # directives that include a year
_LONGEST: Final = 200  # characters of a format or time


def _zone(name: str) -> tzinfo:
    if name in ("UTC", "Z"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        hint = "use a name such as Europe/Rome, and install tzdata if all names are unknown"
        raise ValueError(f"there is no time zone {name!r:.100}: {hint}") from None


def _checked(format_: str, directives: frozenset[str]) -> str:
    if len(format_) > _LONGEST:
        raise ValueError(f"a format of {len(format_)} characters: at most {_LONGEST} are allowed")
    for each in re.findall(r"%(.?)", format_, re.DOTALL):
        if each not in directives:
            raise ValueError(f"%{each} in the format {format_!r} is not a directive, such as %Y or %H")
    return format_


def _read_format(format_: str) -> str:
    _checked(format_, _READ)
    try:
        datetime.strptime(datetime(2026, 11, 27, tzinfo=UTC).strftime(format_), format_)  # noqa: DTZ007 - only checked
    except (ValueError, re.error) as error:
        raise ValueError(f"the format {format_!r} can't be used to parse: {error}") from None
    return format_


def _from_text(text: str, zone: tzinfo) -> datetime:
    if len(text) > _LONGEST:
        raise ValueError(f"a time of {len(text)} characters: at most {_LONGEST} are allowed")
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is not a time in ISO 8601, such as 2026-11-27T08:30:00Z: use a format") from None
    return found if found.tzinfo else found.replace(tzinfo=zone)


def _seconds(time: datetime) -> float:
    """Return the seconds since 1970: a whole number if possible."""
    whole, rest = divmod((time - _EPOCH) // _MICROSECOND, 1_000_000)
    return whole + rest / 1e6 if rest else whole


def _datetime(time: float | str) -> datetime:
    if isinstance(time, str):
        return _from_text(time, UTC)
    try:
        return _EPOCH + timedelta(seconds=time)
    except (OverflowError, ValueError):
        raise ValueError(f"{time!r:.50} is not a time in seconds since 1970: divide milliseconds by 1000") from None


_TIME: Final = Kind("a number of seconds since 1970, or a time in ISO 8601", frozenset((int, float, str)), _datetime)
_ZONE: Final = Kind("the name of a time zone", STRING.types, _zone)
_TO_READ: Final = Kind("a format", STRING.types, _read_format)
_TO_WRITE: Final = Kind("a format", STRING.types, lambda format_: _checked(format_, _WRITTEN))


@function(example="now() > 1700000000", result=True)
def now() -> float:
    """Returns the current time in seconds since 1970, with decimal places. In a test of a flow, it is the virtual
    clock.
    """
    return now_ns() / 1e9


@function(
    STRING,
    _TO_READ,
    _ZONE,
    example="parse_time('27/Nov/2026 09:30', '%d/%b/%Y %H:%M', 'Europe/Rome')",
    result=1795768200,
)
def parse_time(string: str, format_: str | None = None, zone: tzinfo | None = None) -> float:
    """Converts a time to seconds since 1970. Without a format, it is in ISO 8601. The zone, by default UTC, applies to
    a time that names none. Digits after microseconds are ignored. If the format has no year, the result is at most one
    day in the future, and less than a year in the past.
    """
    if format_ is None:
        return _seconds(_from_text(string, zone or UTC))
    try:
        if any(each in format_ for each in _YEARS):
            return _seconds(_in_zone(datetime.strptime(string[:_LONGEST], format_), zone))  # noqa: DTZ007 - the zone follows
        return _without_year(string, format_, zone)
    except ValueError:
        raise ValueError(f"{string!r:.100} does not have the format {format_!r}") from None


def _in_zone(time: datetime, zone: tzinfo | None) -> datetime:
    return time if time.tzinfo else time.replace(tzinfo=zone or UTC)


def _without_year(string: str, format_: str, zone: tzinfo | None) -> float:
    """Return the time in this year, or in the last one if it would be more than a day ahead."""
    now_ = _EPOCH + timedelta(microseconds=now_ns() // 1000)
    for year in (now_.year + 1, now_.year, now_.year - 1):
        try:
            given = f"{year} {string[:_LONGEST]}"
            time = _in_zone(datetime.strptime(given, f"%Y {format_}"), zone)  # noqa: DTZ007 - the zone follows
        except ValueError:
            if year == now_.year - 1:
                raise
            continue  # February 29
        if time - now_ < timedelta(days=1):
            return _seconds(time)
    raise AssertionError("the time is in the past")


@function(
    _TIME, _TO_WRITE, _ZONE, example="format_time(1795768200, '%A, %H:%M', 'Europe/Rome')", result="Friday, 09:30"
)
def format_time(time: datetime, format_: str | None = None, zone: tzinfo | None = None) -> str:
    """Converts a time, in seconds since 1970 or in ISO 8601, to a string. Without a format, the string is in ISO 8601.
    The zone is UTC by default.
    """
    local = time.astimezone(zone or UTC)
    if format_ is not None:
        return local.strftime(format_)
    return local.isoformat().replace("+00:00", "Z")


_PARTS: Final = {
    "year": 2026,
    "month": 11,
    "day": 27,
    "hour": 9,
    "minute": 30,
    "second": 0,
    "weekday": 5,
    "yearday": 331,
}


@function(_TIME, _ZONE, example="time_parts('2026-11-27T08:30:00Z', 'Europe/Rome')", result=_PARTS)
def time_parts(time: datetime, zone: tzinfo | None = None) -> dict[str, Any]:
    """Returns the parts of a time as numbers. ``weekday`` is from 1, Monday, to 7."""
    local = time.astimezone(zone or UTC)
    return {
        "year": local.year, "month": local.month, "day": local.day, "hour": local.hour, "minute": local.minute,
        "second": local.second, "weekday": local.isoweekday(), "yearday": local.timetuple().tm_yday,
    }  # fmt: skip


@function(STRING, example="parse_duration('1m30s')", result=90.0)
def parse_duration(string: str) -> float:
    """Converts a duration, such as ``200ms``, ``5s``, or ``1h``, to seconds."""
    return float(Duration.read(string))
