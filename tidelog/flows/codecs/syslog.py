"""``syslog``: RFC 5424, and RFC 3164 with common deviations.

    <PRI>1 TIMESTAMP HOSTNAME APP-NAME PROCID MSGID STRUCTURED-DATA MSG       5424
    <PRI>Mmm dd hh:mm:ss HOSTNAME TAG[PID]: MSG                               3164, also with an RFC 3339 time, a
                                                                              year, a fraction, or without HOSTNAME

A value has ``protocol`` ("RFC5424" or "RFC3164"), ``facility`` and ``severity`` (names), ``timestamp`` (ns since
1970), ``hostname``, ``appname``, ``procid``, ``msgid``, ``structured_data`` ({id: {name: value, or a list of values}})
and ``msg``. Missing parts of a message are None. A time without a zone is read as UTC, and a time without a year as the
nearest such date.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Literal

from tidelog.flows.api.errors import RejectError
from tidelog.flows.codecs.base import encoded
from tidelog.options.structs import Struct

FACILITIES: Final = (
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp", "ntp",
    "audit", "alert", "clock", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7",
)  # fmt: skip
SEVERITIES: Final = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_PRI: Final = re.compile(r"<(\d{1,3})>")
_HEADER: Final = re.compile(r"1 (\S+) (\S+) (\S+) (\S+) (\S+) ")
_STAMP: Final = re.compile(  # RFC 5424 allows 6 digits in a fraction; .NET and Go write 7 and 9
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:Z|([+-])(\d\d):?(\d\d))", re.ASCII
)
_OLD: Final = re.compile(  # Cisco adds a year, and syslog-ng a fraction
    rf"({'|'.join(MONTHS)}) ([ \d]?\d) (?:(\d{{4}}) )?(\d\d):(\d\d):(\d\d)(?:\.(\d{{1,9}}))?:? ", re.ASCII
)
_HOST: Final = re.compile(r"(\S{1,255})(?: |$)")
_TAG: Final = re.compile(r"([^\s\[\]:]{1,64})(?:\[([^\]\s]{1,128})\])?: ?")
_SD_NAME: Final = re.compile(r'[!#-<>-\\^-~]{1,32}')  # printable ASCII except " = ] and space
_SD_VALUE: Final = re.compile(r'"((?:[^"\\\]]++|\\.)*+)"', re.DOTALL)
_ATOM: Final = re.compile(r"[!-~]+")
_LENGTHS: Final = {"hostname": 255, "appname": 48, "procid": 128, "msgid": 32}
_KNOWN: Final = ("msg", "structured_data", "timestamp", "facility", "severity", *_LENGTHS)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class SyslogOptions(Struct):
    """Options of ``syslog``."""

    protocol: Literal["RFC5424", "RFC3164"] = "RFC5424"
    # `RFC5424` or `RFC3164`: the format of encoded messages, unless the value has `protocol`.


class SyslogCodec:
    """Decodes both formats, which it distinguishes by the beginning of a message, and encodes one of them."""

    Options = SyslogOptions
    delimited: ClassVar[bool] = False

    def __init__(self, options: SyslogOptions, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._protocol = options.protocol
        self._now_ns = now_ns

    def decode(self, data: bytes, meta: dict[str, Any]) -> Any:  # noqa: ARG002 - a codec's signature
        text = str(data, "utf-8").removeprefix("\ufeff").rstrip("\r\n\0")
        found = _PRI.match(text)
        if found is None or int(found[1]) > 191:
            raise ValueError("a syslog message must begin with its priority, <0> to <191>")
        facility, severity = divmod(int(found[1]), 8)
        value: dict[str, Any] = {
            "protocol": "RFC5424", "facility": FACILITIES[facility], "severity": SEVERITIES[severity],
            "timestamp": None, "hostname": None, "appname": None, "procid": None, "msgid": None,
            "structured_data": None, "msg": None,
        }  # fmt: skip
        rest = text[found.end() :]
        if rest.startswith("1 "):
            _new(rest, value)
        else:
            self._old(rest, value)
        return value

    def _old(self, rest: str, value: dict[str, Any]) -> None:
        value["protocol"] = "RFC3164"
        stamp, at = self._old_stamp(rest)
        if stamp is None:
            value["msg"] = rest  # RFC 3164, 4.3.2: there is no header
            return
        value["timestamp"] = stamp
        tag = _TAG.match(rest, at)
        # Messages for /dev/log have no host. 2001:db8::1 is a host, not a tag.
        named = tag is not None and (tag.end() == len(rest) or rest[tag.end() - 1] == " ")
        if not named and (host := _HOST.match(rest, at)):
            value["hostname"] = None if host[1] == "-" else host[1]
            at = host.end()
            tag = _TAG.match(rest, at)
        if tag is not None:
            value["appname"], value["procid"] = tag[1], tag[2]
            at = tag.end()
        value["msg"] = rest[at:]

    def _old_stamp(self, rest: str) -> tuple[int | None, int]:
        """Return (ns since 1970, index of the host). The time is None if the message does not begin with one."""
        if (found := _OLD.match(rest)) is not None:
            return self._near(found), found.end()
        stamp, space, _ = rest[:64].partition(" ")  # RSYSLOG_ForwardFormat of rsyslog has RFC 3339 times
        return (_timestamp(stamp) if space else None), len(stamp) + 1

    def _near(self, found: re.Match[str]) -> int | None:
        now = self._now_ns()
        year = (_EPOCH.year if now < 0 else datetime.fromtimestamp(now // 1_000_000_000, UTC).year)
        month = MONTHS.index(found[1]) + 1
        away = 8 if month == 2 and int(found[2]) == 29 else 1  # leap years are up to eight years apart
        stamps = [
            stamp + _fraction(found[7])
            for each in ((int(found[3]),) if found[3] else range(year - away, year + away + 1))
            if (stamp := _ns(each, month, int(found[2]), *(int(found[place]) for place in (4, 5, 6)))) is not None
        ]
        return min(stamps, key=lambda stamp: abs(stamp - now), default=None)

    def encode(self, value: Any, meta: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        if not isinstance(value, Mapping):
            raise RejectError(f"the codec syslog encodes dicts, not {type(value).__name__}")
        if not any(each in value for each in _KNOWN):
            raise RejectError(f"the dict has none of {', '.join(_KNOWN)}")
        protocol = value.get("protocol") or self._protocol
        priority = 8 * _index(value, "facility", FACILITIES, "user") + _index(value, "severity", SEVERITIES, "notice")
        msg = value.get("msg")
        if msg is not None and not isinstance(msg, str):
            raise RejectError(f"msg is {type(msg).__name__}: it must be text")
        stamp = value.get("timestamp")
        if stamp is not None and (not isinstance(stamp, int) or isinstance(stamp, bool)):
            raise RejectError(f"timestamp is {stamp!r}: it must be an integer, ns since 1970")
        if protocol == "RFC5424":
            line = self._write_new(value, priority, stamp, msg)
        elif protocol == "RFC3164":
            line = self._write_old(value, priority, self._now_ns() if stamp is None else stamp, msg or "")
        else:
            raise RejectError(f"protocol is {protocol!r}: it must be RFC5424 or RFC3164")
        return encoded(line)

    def _write_new(self, value: Mapping[Any, Any], priority: int, stamp: int | None, msg: str | None) -> str:
        when = "-"
        if stamp is not None:
            at = _datetime(stamp)
            when = f"{at:%Y-%m-%dT%H:%M:%S}.{stamp // 1000 % 1_000_000:06d}Z"
        names = [_atom(value, name) or "-" for name in _LENGTHS]
        line = f"<{priority}>1 {when} {' '.join(names)} {_write_data(value.get('structured_data'))}"
        return line if msg is None else f"{line} {msg}"

    def _write_old(self, value: Mapping[Any, Any], priority: int, stamp: int, msg: str) -> str:
        at = _datetime(stamp)
        line = f"<{priority}>{MONTHS[at.month - 1]} {at.day:2d} {at:%H:%M:%S} {_atom(value, 'hostname') or '-'} "
        appname, procid = _atom(value, "appname"), _atom(value, "procid")
        if appname:
            if set(appname + (procid or "")) & set("[]:"):
                raise RejectError("appname and procid of RFC 3164 can't contain [, ] or :")
            line += f"{appname}[{procid}]: " if procid else f"{appname}: "
        return line + msg


def _new(rest: str, value: dict[str, Any]) -> None:
    found = _HEADER.match(rest)
    if found is None:
        raise ValueError("an RFC 5424 message needs a time, a host, a program, a process, an ID and structured data")
    stamp = found[1]
    if stamp != "-":
        value["timestamp"] = _rfc3339(stamp)
    for name, given in zip(_LENGTHS, found.groups()[1:], strict=True):
        value[name] = None if given == "-" else given
    at = found.end()
    if rest[at : at + 1] == "-":
        at += 1
    else:
        value["structured_data"], at = _data(rest, at)
    if at == len(rest):
        return
    if rest[at] != " ":
        raise ValueError(f"a space must follow the structured data, at character {at}")
    value["msg"] = rest[at + 1 :].removeprefix("\ufeff")


def _data(rest: str, at: int) -> tuple[dict[str, dict[str, Any]], int]:
    found: dict[str, dict[str, Any]] = {}
    while rest[at : at + 1] == "[":
        name = _SD_NAME.match(rest, at + 1)
        if name is None:
            raise ValueError(f"an ID must follow [, at character {at}")
        if name[0] in found:
            raise ValueError(f"the structured data {name[0]!r} occurs twice")
        one = found[name[0]] = {}
        at = name.end()
        while rest[at : at + 1] == " ":
            key = _SD_NAME.match(rest, at + 1)
            given = _SD_VALUE.match(rest, key.end() + 1) if key and rest[key.end() : key.end() + 1] == "=" else None
            if key is None or given is None:
                raise ValueError(f'name="value" must follow in structured data, at character {at}')
            text = re.sub(r'\\(["\\\]])', r"\1", given[1])
            if key[0] not in one:
                one[key[0]] = text
            elif isinstance(one[key[0]], list):
                one[key[0]].append(text)
            else:
                one[key[0]] = [one[key[0]], text]
            at = given.end()
        if rest[at : at + 1] != "]":
            raise ValueError(f"] is missing in structured data, at character {at}")
        at += 1
    if not found:
        raise ValueError("structured data must be - or begin with [")
    return found, at


def _write_data(given: Any) -> str:
    if not given:
        return "-"
    if not isinstance(given, Mapping) or not all(isinstance(each, Mapping) for each in given.values()):
        raise RejectError("structured_data must be {id: {name: value}}")
    made = ""
    for name, one in given.items():
        made += f"[{_sd_name(name)}"
        for key, each in one.items():
            for text in each if isinstance(each, (list, tuple)) else (each,):
                if not isinstance(text, str):
                    raise RejectError(f"structured_data: {key!r} is {type(text).__name__}: it must be text")
                escaped = re.sub(r'(["\\\]])', r"\\\1", text)
                made += f' {_sd_name(key)}="{escaped}"'
        made += "]"
    return made


def _sd_name(given: Any) -> str:
    if not isinstance(given, str) or not _SD_NAME.fullmatch(given):
        raise RejectError(f'{given!r} is not a name: 1 to 32 printable ASCII characters, without " = ]')
    return given


def _index(value: Mapping[Any, Any], name: str, known: tuple[str, ...], otherwise: str) -> int:
    given = value.get(name) or otherwise
    if given not in known:
        raise RejectError(f"{name} is {given!r}: it must be one of {', '.join(known)}")
    return known.index(given)


def _atom(value: Mapping[Any, Any], name: str) -> str | None:
    given = value.get(name)
    if given is None:
        return None
    if not isinstance(given, str) or not _ATOM.fullmatch(given) or len(given) > _LENGTHS[name]:
        raise RejectError(f"{name} is {given!r}: it must be 1 to {_LENGTHS[name]} printable ASCII characters")
    return given


def _rfc3339(given: str) -> int:
    stamp = _timestamp(given)
    if stamp is None:
        raise ValueError(f"{given[:64]!r} is not an RFC 5424 time, such as 2003-10-11T22:14:15.003Z")
    return stamp


def _timestamp(given: str) -> int | None:
    """Return the ns since 1970 of an RFC 3339 time; None: it is not valid."""
    found = _STAMP.fullmatch(given)
    stamp = None if found is None else _ns(*(int(found[place]) for place in range(1, 7)))
    if found is None or stamp is None:
        return None
    stamp += _fraction(found[7])
    if found[8]:
        away = (int(found[9]) * 60 + int(found[10])) * 60_000_000_000
        stamp += away if found[8] == "-" else -away
    return stamp


def _fraction(digits: str | None) -> int:
    """Return the ns of the digits after the decimal point of a second."""
    return int((digits or "").ljust(9, "0"))


def _ns(year: int, month: int, day: int, hour: int, minute: int, second: int) -> int | None:
    try:
        since = datetime(year, month, day, hour, minute, second, tzinfo=UTC) - _EPOCH
    except ValueError:
        return None
    return (since.days * 86_400 + since.seconds) * 1_000_000_000


def _datetime(stamp: int) -> datetime:
    try:
        return datetime.fromtimestamp(stamp // 1_000_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        raise RejectError(f"timestamp is {stamp}: it must be ns since 1970, within the years 1 to 9999") from None
