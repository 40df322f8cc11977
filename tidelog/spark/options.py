"""The options of ``format("tidelog")``: each declared once, all read and checked before a server is asked anything.

Names and defaults are those of Spark's Kafka source, for all options that it has too.

Rule 1: an option that is unknown, malformed or contradicts another one raises an OptionError that names it, spelled as
        here. No option is ignored silently.
Rule 2: when Spark makes a source or a sink, it does not say whether it is for a batch or for a stream. Options for only
        one of them are checked as soon as that is known: the argument ``kind`` of ``for_source`` and ``for_sink``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tidelog.client.access import DEFAULT_URL, Access, is_url
from tidelog.client.entries import StreamId

SOURCE: Final = "source"
SINK: Final = "sink"
BOTH: Final = "both"
BATCH: Final = "batch"
STREAM: Final = "stream"
NO_ID: Final = StreamId(0, 0)


class OptionError(ValueError):
    """An option that can't be used as given. The text names it."""


@dataclass(frozen=True)
class Option:
    """One option as docs/spark.md lists it."""

    name: str
    side: str = SOURCE  # SOURCE, SINK or BOTH
    only: str = ""  # BATCH or STREAM: for this kind only
    default: str = ""


DECLARED: Final = (
    Option("url", BOTH, default=DEFAULT_URL),
    Option("username", BOTH),
    Option("password", BOTH),
    Option("tls", BOTH, default="false"),
    Option("tlsCaFile", BOTH),
    Option("tlsCertFile", BOTH),
    Option("tlsKeyFile", BOTH),
    Option("tlsVerify", BOTH, default="true"),
    Option("connectTimeoutMs", BOTH, default="10000"),
    Option("readTimeoutMs", BOTH, default="120000"),
    Option("fetchOffset.numRetries", BOTH, default="3"),
    Option("fetchOffset.retryIntervalMs", BOTH, default="1000"),
    Option("subscribe"),
    Option("subscribePattern"),
    Option("assign"),
    Option("startingOffsets"),
    Option("endingOffsets", only=BATCH),
    Option("startingTimestamp"),
    Option("endingTimestamp", only=BATCH),
    Option("startingOffsetsByTimestamp"),
    Option("endingOffsetsByTimestamp", only=BATCH),
    Option("maxOffsetsPerTrigger", only=STREAM),
    Option("minOffsetsPerTrigger", only=STREAM),
    Option("maxTriggerDelay", only=STREAM, default="15m"),
    Option("minPartitions"),
    Option("failOnDataLoss", default="true"),
    Option("groupIdPrefix", default="spark-tidelog-source"),
    Option("readFrom", default="leader"),
    Option("mode", default="permissive"),
    Option("key", SINK),
    Option("maxlen", SINK),
    Option("maxage", SINK),
    Option("txnAppId", SINK, only=BATCH),
    Option("txnVersion", SINK, only=BATCH),
    Option("stageTtlMs", SINK, default="3600000"),
)
BY_NAME: Final = {option.name.lower(): option for option in DECLARED}
#: Options of writeStream itself, which Spark passes on to the sink.
SPARKS_OWN: Final = frozenset({"checkpointlocation"})
SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")
STARTS: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
ENDS: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
#: The options that fields of Access come from, for its error messages.
ACCESS_NAMES: Final = {
    "urls": "url", "ca_file": "tlsCaFile",
    "retries": "fetchOffset.numRetries", "retry_ms": "fetchOffset.retryIntervalMs",
}  # fmt: skip


class Given:
    """The options as they were given. Names are accepted in any case; each value is checked when it is read.

    OptionError for unknown names.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.values: dict[str, str] = {}
        for name, value in options.items():
            if name.lower() in SPARKS_OWN:
                continue
            known = BY_NAME.get(name.lower())
            if known is None:
                raise OptionError(f"unknown option: {name}{_meant(name)}")
            self.values[known.name] = value

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def text(self, name: str) -> str:
        """The value given, or the default; "" if there is none."""
        return self.values.get(name, BY_NAME[name.lower()].default)

    def filled(self, name: str) -> str | None:
        """The value given, or None. OptionError if it is empty."""
        value = self.values.get(name)
        if value is not None and not value.strip():
            raise OptionError(f"{name} is empty")
        return value

    def flag(self, name: str) -> bool:
        """``true`` or ``false``. OptionError for anything else."""
        value = self.text(name).strip().lower()
        if value not in ("true", "false"):
            raise OptionError(f"{name} must be true or false: {self.text(name)!r}")
        return value == "true"

    def number(self, name: str, least: int = 0) -> int | None:
        """A whole number, or None if it wasn't given and has no default. OptionError for anything else."""
        value = self.text(name).strip()
        if not value and name not in self.values:
            return None
        if not re.fullmatch(r"\d{1,18}", value) or int(value) < least:
            raise OptionError(f"{name} must be a whole number, at least {least}: {self.text(name)!r}")
        return int(value)

    def needed(self, name: str, least: int = 0) -> int:
        """A whole number, for an option that has a default or was given."""
        number = self.number(name, least)
        if number is None:
            raise OptionError(f"{name} is needed")
        return number

    def duration(self, name: str) -> int:
        """Milliseconds, from ``15m``, ``10s``, ``250ms``, ``1h``, ``2d`` or a number of milliseconds."""
        match = re.fullmatch(r"(\d{1,15})\s*(ms|s|m|min|h|d|)", self.text(name).strip().lower())
        if match is None:
            raise OptionError(f"{name} must be a duration such as 15m, 10s or 250ms: {self.text(name)!r}")
        unit = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}[match[2]]
        return int(match[1]) * unit

    def one_of(self, name: str, *choices: str) -> str:
        """The value in lower case. OptionError unless it is one of ``choices``."""
        value = self.text(name).strip().lower()
        if value not in choices:
            raise OptionError(f"{name} must be one of {', '.join(choices)}: {self.text(name)!r}")
        return value

    def at_most_one(self, names: tuple[str, ...]) -> str | None:
        """The one of these options that was given, or None. OptionError if there are two."""
        given = [name for name in names if name in self.values]
        if len(given) > 1:
            raise OptionError(f"{' and '.join(given)} contradict each other: give one of them")
        return given[0] if given else None

    def only_for(self, side: str, kind: str = "") -> None:
        """OptionError for an option of the other side, and for one of the other kind if ``kind`` is given."""
        for name in self.values:
            option = BY_NAME[name.lower()]
            if option.side not in (side, BOTH):
                raise OptionError(f"{name} is an option of the {option.side}, not of the {side}")
            if kind and option.only and option.only != kind:
                what = {SOURCE: "reads", SINK: "writes"}[side]
                raise OptionError(f"{name} is for {option.only} {what} only, this is a {kind} one")


def _meant(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name.lower(), BY_NAME, 1)
    return f" (did you mean {BY_NAME[near[0]].name}?)" if near else ""


# -- where to begin and to end ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Where:
    """A place in a stream as an option names it; offsets.py looks it up on the server."""

    kind: Literal["earliest", "latest", "id", "time"]
    id: StreamId = NO_ID  # for kind "id"; for kind "time", the first ID of that millisecond


EARLIEST: Final = Where("earliest")
LATEST: Final = Where("latest")


@dataclass(frozen=True)
class Places:
    """Where to begin, or to end: one place for all keys, or one for each."""

    option: str  # the option that they come from, for messages
    everywhere: Where | None
    by_key: Mapping[str, Where] = field(default_factory=dict)

    def named(self, key: str) -> Where | None:
        """The place for this key; None if the option does not name it."""
        return self.everywhere or self.by_key.get(key)


def _places(given: Given, names: tuple[str, ...], default: Where, refused: Where | None) -> Places:
    name = given.at_most_one(names)
    if name is None:
        return Places(names[-1], default)
    text = given.filled(name) or ""
    if name in ("startingTimestamp", "endingTimestamp"):
        return Places(name, Where("time", StreamId(given.needed(name))))
    by_time = name.endswith("ByTimestamp")
    if not by_time and text.strip().lower() in ("earliest", "latest"):
        where = Where(text.strip().lower())  # type: ignore[arg-type]  # one of the two, as just checked
        if where == refused:
            raise OptionError(f"{name} can't be {where.kind}: there would be nothing to read")
        return Places(name, where)
    read = _time if by_time else _place
    places = {key: read(name, key, value) for key, value in _object(name, text).items()}
    if not places:
        raise OptionError(f"{name} names no key")
    for key, where in places.items():
        if where == refused:
            raise OptionError(f"{name} can't be {where.kind}, as it is for key {key!r}: there would be nothing to read")
    return Places(name, None, places)


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        what = "JSON" if name.endswith("ByTimestamp") else "earliest, latest or JSON"
        raise OptionError(f'{name} must be {what} such as {{"key": ...}}: {text!r} ({error})') from None
    if not isinstance(value, dict):
        raise OptionError(f'{name} must be a JSON object such as {{"key": ...}}: {text!r}')
    return value


def _place(name: str, key: str, value: object) -> Where:
    """From ``earliest``, ``latest``, an ID as text, milliseconds as a number, or Kafka's -2 and -1."""
    known = {"earliest": EARLIEST, "latest": LATEST, -2: EARLIEST, -1: LATEST}
    if isinstance(value, str | int) and not isinstance(value, bool):
        where = known.get(value)
        if where is not None:
            return where
        try:
            return Where("id", StreamId.parse(str(value)))
        except ValueError:
            pass
    raise OptionError(f"{name} for key {key!r} must be earliest, latest or an ID (ms.seq): {value!r}")


def _time(name: str, key: str, value: object) -> Where:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise OptionError(f"{name} for key {key!r} must be milliseconds since 1970: {value!r}")
    return Where("time", StreamId(value))


# -- what is read ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Subscription:
    """The keys to read: those named, or those whose whole name matches a pattern."""

    option: str
    keys: tuple[str, ...] = ()
    pattern: str = ""


def _subscription(given: Given) -> Subscription:
    name = given.at_most_one(SUBSCRIPTIONS)
    if name is None:
        raise OptionError(f"one of {', '.join(SUBSCRIPTIONS)} must say what to read")
    text = given.filled(name) or ""
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(f"subscribePattern is no regular expression: {text!r} ({error})") from None
        return Subscription(name, pattern=text)
    keys = _assigned(text) if name == "assign" else [key.strip() for key in text.split(",")]
    if not keys or not all(keys):
        raise OptionError(f"{name} has an empty key: {text!r}")
    if len(set(keys)) < len(keys):
        raise OptionError(f"{name} names a key twice: {text!r}")
    return Subscription(name, tuple(keys))


def _assigned(text: str) -> list[str]:
    """A JSON array of keys; or an object as for Kafka, where a stream's only partition is 0."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise OptionError(f'assign must be JSON such as ["key"]: {text!r} ({error})') from None
    if isinstance(value, dict) and all(partitions == [0] for partitions in value.values()):
        value = list(value)
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise OptionError(f'assign must be a JSON array of keys, or {{"key": [0]}}: {text!r}')
    return value


# -- all together ---------------------------------------------------------------------------------------------------
def _access(given: Given) -> Access:
    urls = tuple(url.strip() for url in given.text("url").split(","))
    if not all(map(is_url, urls)):
        raise OptionError("url must be redis://host:port, rediss://host:port or unix:///path, several by commas")
    secure = any(url.startswith("rediss:") for url in urls)
    if "tls" in given and not given.flag("tls") and secure:
        raise OptionError("tls is false, and url says rediss://")
    tls = given.flag("tls") or secure
    for name in ("tlsCaFile", "tlsCertFile", "tlsKeyFile", "tlsVerify"):
        if name in given and not tls:
            raise OptionError(f"{name} is given, but neither tls is true nor does url say rediss://")
    if ("tlsCertFile" in given) != ("tlsKeyFile" in given):
        raise OptionError("tlsCertFile and tlsKeyFile belong together")
    if "password" in given and any("@" in url for url in urls):
        raise OptionError("password is given, and url has one too")
    if "username" in given and "password" not in given:
        raise OptionError("username is given without password")
    return Access(
        urls, given.filled("username"), given.values.get("password"), tls, given.filled("tlsCaFile"),
        given.filled("tlsCertFile"), given.filled("tlsKeyFile"), given.flag("tlsVerify"),
        given.needed("connectTimeoutMs", 1), given.needed("readTimeoutMs", 1),
        given.needed("fetchOffset.numRetries"), given.needed("fetchOffset.retryIntervalMs"), ACCESS_NAMES,
    )  # fmt: skip


@dataclass(frozen=True)
class Source:
    """The options of a read."""

    access: Access
    subscription: Subscription
    starting: Places  # by default earliest for a batch, latest for a stream
    ending: Places
    max_offsets: int | None  # entries in one batch of a stream
    min_offsets: int | None  # entries that a batch of a stream waits for
    max_delay_ms: int  # how long it waits for them
    min_partitions: int | None
    fail_on_loss: bool
    name: str  # of the connections in CLIENT LIST, with -driver or -task appended
    from_replica: bool
    mode: Literal["permissive", "dropmalformed", "failfast"]


def for_source(given: Given, kind: str = "") -> Source:
    """The options of a read. ``kind`` is BATCH or STREAM once that is known. OptionError as in Rule 1."""
    given.only_for(SOURCE, kind)
    subscription = _subscription(given)
    starting = _places(given, STARTS, LATEST if kind == STREAM else EARLIEST, LATEST if kind == BATCH else None)
    ending = _places(given, ENDS, LATEST, EARLIEST)
    for places in (starting, ending):
        _check_keys(places, subscription)
    most, least = given.number("maxOffsetsPerTrigger", 1), given.number("minOffsetsPerTrigger", 1)
    if most is not None and least is not None and least > most:
        raise OptionError(f"minOffsetsPerTrigger ({least}) is above maxOffsetsPerTrigger ({most})")
    if "maxTriggerDelay" in given and least is None:
        raise OptionError("maxTriggerDelay is given without minOffsetsPerTrigger")
    name = given.text("groupIdPrefix")
    if not re.fullmatch(r"[!-~]{1,200}", name):  # what CLIENT SETNAME takes
        raise OptionError(f"groupIdPrefix must be printable ASCII without spaces: {name!r}")
    mode = given.one_of("mode", "permissive", "dropmalformed", "failfast")
    return Source(
        _access(given), subscription, starting, ending, most, least, given.duration("maxTriggerDelay"),
        given.number("minPartitions", 1), given.flag("failOnDataLoss"), name,
        given.one_of("readFrom", "leader", "replica") == "replica", mode,  # type: ignore[arg-type]  # one_of checked
    )  # fmt: skip


def _check_keys(places: Places, subscription: Subscription) -> None:
    """Places by key must name all keys subscribed to, as in Kafka's source, but not all that match a pattern."""
    if places.everywhere is not None:
        return
    for key in places.by_key:
        if subscription.pattern and not re.fullmatch(subscription.pattern, key):
            raise OptionError(f"{places.option} names key {key!r}, which subscribePattern does not match")
        if not subscription.pattern and key not in subscription.keys:
            raise OptionError(f"{places.option} names key {key!r}, which {subscription.option} does not")
    if lacking := [key for key in subscription.keys if key not in places.by_key]:
        raise OptionError(f"{places.option} lacks key {lacking[0]!r}, which {subscription.option} names")


@dataclass(frozen=True)
class Sink:
    """The options of a write."""

    access: Access
    key: str | None  # None: the column _key has it
    maxlen: int | None  # entries that a stream keeps after a batch
    maxage_ms: int | None  # their greatest age
    transaction: tuple[str, int] | None  # txnAppId, txnVersion
    stage_ttl_ms: int


def for_sink(given: Given, kind: str = "") -> Sink:
    """The options of a write. ``kind`` is BATCH or STREAM once that is known. OptionError as in Rule 1."""
    given.only_for(SINK, kind)
    if ("txnAppId" in given) != ("txnVersion" in given):
        raise OptionError("txnAppId and txnVersion belong together")
    given.at_most_one(("maxlen", "maxage"))
    application, version = given.filled("txnAppId"), given.number("txnVersion")
    return Sink(
        _access(given), given.filled("key"), given.number("maxlen"),
        given.duration("maxage") if "maxage" in given else None,
        None if application is None or version is None else (application, version), given.needed("stageTtlMs", 1000),
    )  # fmt: skip


def is_source(given: Given) -> bool:
    """Whether these options are clearly for a read: they name what to subscribe to."""
    return any(name in given for name in SUBSCRIPTIONS)
