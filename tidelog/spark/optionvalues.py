"""Declares the options of ``format("tidelog")``, and holds the values that were given.

Names and defaults are those of Spark's Kafka source, if it has the option. The only exception is
fetchOffset.numRetries, because three attempts are too few for a failover.

An unknown option or a malformed value raises an OptionError that names the option as it is spelled here, because Spark
passes names in lower case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidelog.transport.access import DEFAULT_URL

#: The value that the sink compares before it skips a batch (checks.py).
AUTO: Final = "auto"
OFFSETS: Final = "offsets"
ROWS: Final = "rows"
NONE: Final = "none"

SOURCE: Final = "source"
SINK: Final = "sink"
BOTH: Final = "both"
BATCH: Final = "batch"
STREAM: Final = "stream"


class OptionError(ValueError):
    """An option is invalid. The text names it."""


@dataclass(frozen=True)
class Option:
    """One option, as docs/spark.md lists it."""

    name: str
    side: str = SOURCE  # SOURCE, SINK, or BOTH
    only: str = ""  # BATCH or STREAM: only for this kind
    default: str = ""


DECLARED: Final = (
    Option("url", BOTH, default=DEFAULT_URL),
    Option("username", BOTH),
    Option("password", BOTH),
    Option("tls", BOTH, default="false"),
    Option("tlsCaFile", BOTH),
    Option("tlsCertFile", BOTH),
    Option("tlsKeyFile", BOTH),
    Option("tlsKeyPassword", BOTH),
    Option("tlsVerify", BOTH, default="true"),
    Option("tlsCheckHostname", BOTH, default="true"),
    Option("connectTimeoutMs", BOTH, default="10000"),
    Option("readTimeoutMs", BOTH, default="120000"),
    Option("sentinels", BOTH),
    Option("sentinelMaster", BOTH),
    Option("sentinelUsername", BOTH),
    Option("sentinelPassword", BOTH),
    Option("fetchOffset.numRetries", BOTH, default="60"),
    Option("fetchOffset.retryIntervalMs", BOTH, default="1000"),
    Option("subscribe"),
    Option("subscribePattern"),
    Option("assign"),
    Option("topic", BOTH),
    Option("startingOffsets"),
    Option("endingOffsets", only=BATCH),
    Option("startingTimestamp"),
    Option("endingTimestamp", only=BATCH),
    Option("startingOffsetsByTimestamp"),
    Option("startingOffsetsByTimestampStrategy", default="error"),
    Option("endingOffsetsByTimestamp", only=BATCH),
    Option("maxOffsetsPerTrigger", only=STREAM),
    Option("maxBytesPerTrigger", only=STREAM),
    Option("minOffsetsPerTrigger", only=STREAM),
    Option("maxTriggerDelay", only=STREAM, default="15m"),
    Option("minPartitions"),
    Option("maxPartitions", default="200"),
    Option("maxRecordsPerPartition"),
    Option("maxBytesPerPartition", default=str(16 << 20)),
    Option("history", default=AUTO),
    Option("historyTimeout", default="1m"),
    Option("failOnDataLoss", default="true"),
    Option("failOnMissing"),
    Option("groupIdPrefix", default="spark-tidelog-source"),
    Option("readFrom", default="leader"),
    Option("mode", default="permissive"),
    Option("key", SINK),
    Option("partitionBy", SINK),
    Option("partitions", SINK),
    Option("codec", SINK),
    Option("maxlen", SINK),
    Option("maxage", SINK),
    Option("txnAppId", SINK, only=BATCH),
    Option("txnVersion", SINK, only=BATCH),
    Option("fenceCheck", SINK, default=AUTO),
    Option("waitReplicas", SINK),
    Option("stageTtlMs", SINK, default="3600000"),
    Option("namePrefix", SINK),
)
BY_NAME: Final = {option.name.lower(): option for option in DECLARED}
#: Options of writeStream itself, which Spark passes to the sink.
SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
#: An internal option: tidelog.jobs passes it to a sink (options.Routes, as JSON).
ROUTES: Final = "tidelogRoutes"


class OptionValues:
    """The options that were given. Names are case-insensitive. Each value is validated when it is read.

    Raises OptionError for unknown names.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.values: dict[str, str] = {}
        self.sparks_own: dict[str, str] = {}  # by name in lower case
        self.routes = ""  # ROUTES
        for name, value in options.items():
            if name.lower() in SPARKS_OWN:
                self.sparks_own[name.lower()] = value
                continue
            if name.lower() == ROUTES.lower():
                self.routes = value
                continue
            if name.lower() == "provider":
                raise OptionError(
                    "CREATE TABLE is not possible: Spark does not give a table's options to sources in Python. Use "
                    "CREATE TEMPORARY VIEW name USING tidelog OPTIONS (...)"
                )
            known = BY_NAME.get(name.lower())
            if known is None:
                raise OptionError(f"unknown option: {name}{_meant(name)}")
            self.values[known.name] = value

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def text(self, name: str) -> str:
        """Return the value or the default; "" if there is neither."""
        return self.values.get(name, BY_NAME[name.lower()].default)

    def filled(self, name: str) -> str | None:
        """Return the value or None. Raises OptionError if it is empty."""
        value = self.values.get(name)
        if value is not None and not value.strip():
            raise OptionError(f"{name} is empty")
        return value

    def flag(self, name: str) -> bool:
        """Return ``true`` or ``false`` as a bool. Raises OptionError for any other value."""
        value = self.text(name).strip().lower()
        if value not in ("true", "false"):
            raise OptionError(f"{name} must be true or false: {self.text(name)!r}")
        return value == "true"

    def number(self, name: str, least: int = 0) -> int | None:
        """Return a whole number, or None without a value and a default. Raises OptionError for any other value."""
        value = self.text(name).strip()
        if not value and name not in self.values:
            return None
        if not re.fullmatch(r"\d{1,18}", value) or int(value) < least:
            raise OptionError(f"{name} must be a whole number, at least {least}: {self.text(name)!r}")
        return int(value)

    def needed(self, name: str, least: int = 0) -> int:
        """Return a whole number, for an option that has a default or was given."""
        number = self.number(name, least)
        if number is None:
            raise OptionError(f"{name} is needed")
        return number

    def duration(self, name: str) -> int:
        """Return milliseconds, from ``15m``, ``10s``, ``250ms``, ``1h``, ``2d``, or a number of milliseconds."""
        match = re.fullmatch(r"(\d{1,15})\s*(ms|s|m|min|h|d|)", self.text(name).strip().lower())
        if match is None:
            raise OptionError(f"{name} must be a duration such as 15m, 10s or 250ms: {self.text(name)!r}")
        unit = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}[match[2]]
        return int(match[1]) * unit

    def one_of(self, name: str, *choices: str) -> str:
        """Return the value in lower case. Raises OptionError unless it is one of ``choices``."""
        value = self.text(name).strip().lower()
        if value not in choices:
            raise OptionError(f"{name} must be one of {', '.join(choices)}: {self.text(name)!r}")
        return value

    def at_most_one(self, names: tuple[str, ...]) -> str | None:
        """Return which of these options was given, or None. Raises OptionError if two were given."""
        given = [name for name in names if name in self.values]
        if len(given) > 1:
            raise OptionError(f"{' and '.join(given)} contradict each other: give one of them")
        return given[0] if given else None

    def only_for(self, side: str, kind: str = "") -> None:
        """Raise OptionError for an option of the other side, and for one of the other kind if ``kind`` is given."""
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
