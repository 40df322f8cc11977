"""Validates all options of ``format("tidelog")`` together, before any request to a server.

Rule 1: an unknown, malformed, or contradictory option raises an OptionError that names it as it is spelled in given.py.
        No option is ignored silently.
Rule 2: when Spark creates a source or a sink, it does not report whether it is for a batch or for a stream. Options for
        only one of them are validated as soon as that is known: the argument ``kind`` of ``for_source`` and
        ``for_sink``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import msgspec

from tidelog.client.publish import ReplicaAcks
from tidelog.codecs.codec import NAMES as CODECS
from tidelog.history import choice
from tidelog.spark.optionvalues import (
    AUTO,
    BATCH,
    NONE,
    OFFSETS,
    ROUTES,
    ROWS,
    SINK,
    SOURCE,
    STREAM,
    OptionError,
    OptionValues,
)
from tidelog.spark.positions import (
    EARLIEST,
    ENDS,
    LATEST,
    STARTS,
    SUBSCRIPTIONS,
    TOPIC,
    Positions,
    Subscription,
    places_of,
    subscription_of,
)
from tidelog.topics.settings import TopicError, check_name, check_partitions
from tidelog.transport.access import Access

SINK_NAME: Final = "spark-tidelog-sink"  # prefix of the names of connections, stages, fences, and claims
IN_PASSING_MS: Final = 1000  # for replicas that no option requests
SENTINEL_PORT: Final = ":26379"
#: The options that are fields of Access, by how their values are read.
TEXTS: Final = {
    "username": "username", "tlsCaFile": "ca_file", "tlsCertFile": "cert_file", "tlsKeyFile": "key_file",
    "sentinelMaster": "service", "sentinelUsername": "sentinel_username",
}  # fmt: skip
PASSWORDS: Final = {
    "password": "password", "tlsKeyPassword": "key_password", "sentinelPassword": "sentinel_password",
}  # fmt: skip
NUMBERS: Final = {
    "connectTimeoutMs": "connect_ms", "readTimeoutMs": "read_ms", "fetchOffset.numRetries": "retries",
    "fetchOffset.retryIntervalMs": "retry_ms",
}  # fmt: skip
FLAGS: Final = {"tlsVerify": "verify", "tlsCheckHostname": "check_hostname"}
#: The names of fields in error messages of Access.
ACCESS_NAMES: Final = {
    "urls": "url", "sentinels": "sentinels", **{field: name for name, field in (TEXTS | NUMBERS).items()},
}  # fmt: skip


def access_of(given: OptionValues) -> Access:
    """Return the Access that the options describe. Raises OptionError as in Rule 1."""
    text = given.text("url")
    # With tls, a URL of redis:// may contain options for TLS.
    settings: dict[str, Any] = {"tls": True} if given.flag("tls") else {}
    try:
        found = Access.of(text, **settings)
    except ValueError as error:
        raise OptionError(f"url {str(error).removeprefix('urls ')}") from None
    if "tls" in given and not given.flag("tls") and found.secure:
        raise OptionError("tls is false, and url says rediss://")
    tls = given.flag("tls") or found.secure
    for name in ("tlsCaFile", "tlsCertFile", "tlsKeyFile", "tlsKeyPassword", "tlsVerify", "tlsCheckHostname"):
        if name in given and not tls:
            raise OptionError(f"{name} is given, but neither tls is true nor does url say rediss://")
    if ("tlsCertFile" in given) != ("tlsKeyFile" in given):
        raise OptionError("tlsCertFile and tlsKeyFile belong together")
    sentinels = _sentinels(given, tls)
    if "password" in given and any(found.address(url).password is not None for url in found.urls):
        raise OptionError("password is given, and url has one too")
    if "username" in given and "password" not in given:
        raise OptionError("username is given without password")
    ours: dict[str, Any] = {field: given.filled(name) for name, field in TEXTS.items() if name in given}
    ours |= {field: given.values[name] for name, field in PASSWORDS.items() if name in given}
    for name, field in NUMBERS.items():  # of those that are not given, some may be in the URL
        if name in given:
            ours[field] = given.needed(name, least=1 if name.endswith("TimeoutMs") else 0)
    ours |= {field: False for name, field in FLAGS.items() if not given.flag(name)}
    if sentinels:
        ours["sentinels"] = sentinels
    return replace(found, tls=tls, names=ACCESS_NAMES, **ours)


def given_of(access: Access) -> dict[str, str]:
    """Return options from which ``access_of`` builds an equal Access, except for the names in messages."""
    options = TEXTS | PASSWORDS | NUMBERS
    given = {name: getattr(access, field) for name, field in options.items() if not name.startswith("sentinel")}
    given["tlsKeyFile"] = access.key_file or access.cert_file
    if access.sentinels:
        given |= {name: getattr(access, field) for name, field in options.items() if name.startswith("sentinel")}
        given["sentinels"] = ",".join(access.sentinels)
    else:
        given["url"] = ",".join(access.urls)
    if access.tls:
        given["tls"] = "true"
    given |= {name: "false" for name, field in FLAGS.items() if not getattr(access, field)}
    return {name: str(value) for name, value in given.items() if value is not None}


def _sentinels(given: OptionValues, tls: bool) -> tuple[str, ...]:
    """Return the URLs of the Sentinels. ``tls`` applies to those that are not URLs yet."""
    text = given.filled("sentinels")
    if text is None:
        for name in ("sentinelMaster", "sentinelUsername", "sentinelPassword"):
            if name in given:
                raise OptionError(f"{name} is given without sentinels")
        return ()
    if "url" in given:
        raise OptionError("url and sentinels contradict each other: give one of them")
    if not given.filled("sentinelMaster"):
        raise OptionError("sentinels need sentinelMaster, the name that they have for the leader")
    if "sentinelUsername" in given and "sentinelPassword" not in given:
        raise OptionError("sentinelUsername is given without sentinelPassword")
    urls = []
    for place in (part.strip() for part in text.split(",")):
        url = place if "://" in place else f"{'rediss' if tls else 'redis'}://{place}"
        match = re.fullmatch(r"(rediss?://(?:[^@/]*@)?(?:\[[0-9a-fA-F:]+\]|[^:/@\s]+))(:\d{1,5})?/?", url)
        if match is None:
            raise OptionError(f"sentinels must be host:port, several by commas: {place!r}")
        urls.append(match[1] + (match[2] or SENTINEL_PORT))
    return tuple(urls)


@dataclass(frozen=True)
class ReadOptions:
    """The options of a read."""

    access: Access
    subscription: Subscription
    starting: Positions  # default: earliest for a batch, latest for a stream
    ending: Positions
    times_must_exist: bool  # fail if a stream has no entry from the starting time on
    max_offsets: int | None  # entries in one batch of a stream
    max_bytes: int | None  # approximate size of the entries in one batch of a stream
    min_offsets: int | None  # entries for which a batch of a stream waits
    max_delay_ms: int  # maximum wait for them
    min_partitions: int | None
    max_partitions: int  # tasks of a batch, unless entries per partition are limited
    max_records: int | None  # entries in one partition
    fail_on_loss: bool
    fail_on_missing: bool  # if a named stream does not exist
    name: str  # connections in CLIENT LIST, with -driver or -task appended
    from_replica: bool
    mode: Literal["permissive", "dropmalformed", "failfast"]
    history: str  # see tidelog.history.choice
    max_bytes_per_task: int  # of history objects
    history_seconds: float  # the time limit of each call to the object store


def for_source(given: OptionValues, kind: str = "") -> ReadOptions:
    """Return the options of a read. ``kind`` is BATCH or STREAM when that is known. Raises OptionError as in Rule 1."""
    given.only_for(SOURCE, kind)
    if given.routes:
        raise OptionError(f"{ROUTES} is not for a read")
    subscription = subscription_of(given)
    starting = places_of(given, STARTS, LATEST if kind == STREAM else EARLIEST, LATEST if kind == BATCH else None)
    ending = places_of(given, ENDS, LATEST, EARLIEST)
    for places in (starting, ending):
        _check_keys(places, subscription)
    most, least = given.number("maxOffsetsPerTrigger", 1), given.number("minOffsetsPerTrigger", 1)
    if most is not None and least is not None and least > most:
        raise OptionError(f"minOffsetsPerTrigger ({least}) is above maxOffsetsPerTrigger ({most})")
    if "maxTriggerDelay" in given and least is None:
        raise OptionError("maxTriggerDelay is given without minOffsetsPerTrigger")
    few, many = given.number("minPartitions", 1), given.needed("maxPartitions", 1)
    if few is not None and few > many:
        if "maxPartitions" in given:
            raise OptionError(f"minPartitions ({few}) is above maxPartitions ({many})")
        many = few
    name = given.text("groupIdPrefix")
    if not re.fullmatch(r"[!-~]{1,200}", name):  # the names that CLIENT SETNAME accepts
        raise OptionError(f"groupIdPrefix must be printable ASCII without spaces: {name!r}")
    strategy = given.one_of("startingOffsetsByTimestampStrategy", "error", "latest")
    mode = given.one_of("mode", "permissive", "dropmalformed", "failfast")
    return ReadOptions(
        access_of(given), subscription, starting, ending, strategy == "error", most,
        given.number("maxBytesPerTrigger", 1), least, given.duration("maxTriggerDelay"),
        few, many, given.number("maxRecordsPerPartition", 1), given.flag("failOnDataLoss"),
        given.flag("failOnMissing") if "failOnMissing" in given else kind == BATCH or bool(subscription.topic), name,
        given.one_of("readFrom", "leader", "replica") == "replica", mode,  # type: ignore[arg-type]  # one_of checked
        given.one_of("history", *choice.CHOICES), given.needed("maxBytesPerPartition", 1),
        _positive(given, "historyTimeout") / 1000,
    )  # fmt: skip


def _positive(given: OptionValues, name: str) -> int:
    """Return a duration in milliseconds. Raises OptionError if it is zero."""
    found = given.duration(name)
    if not found:
        raise OptionError(f"{name} must be above zero")
    return found


def _check_keys(places: Positions, subscription: Subscription) -> None:
    """Positions by key must name all subscribed keys, as in Kafka's source, but not all keys that match a pattern."""
    if places.everywhere is not None:
        return
    for key in places.by_key:
        if subscription.topic:
            if not re.fullmatch(rf"{re.escape(subscription.topic)}:(0|[1-9]\d*)", key):
                raise OptionError(f"{places.option} names key {key!r}, which is no partition of the topic: name:number")
            continue
        if subscription.pattern and not re.fullmatch(subscription.pattern, key):
            raise OptionError(f"{places.option} names key {key!r}, which subscribePattern does not match")
        if not subscription.pattern and key not in subscription.keys:
            raise OptionError(f"{places.option} names key {key!r}, which {subscription.option} does not")
    if subscription.topic:
        return
    if lacking := [key for key in subscription.keys if key not in places.by_key]:
        raise OptionError(f"{places.option} lacks key {lacking[0]!r}, which {subscription.option} names")


@dataclass(frozen=True)
class TopicOptions:
    """The options of a write to a topic. None: as the server's settings say."""

    name: str
    partition_by: str | None  # column with the key
    partitions: int | None  # number with which a missing topic is created
    codec: str | None


def _topic_of(given: OptionValues) -> TopicOptions | None:
    name = given.filled("topic")
    if name is None:
        for option in ("partitionBy", "partitions", "codec"):
            if option in given:
                raise OptionError(f"{option} is given without topic")
        return None
    if "key" in given:
        raise OptionError("key and topic contradict each other: give one of them")
    for option in ("maxlen", "maxage"):
        if option in given:
            raise OptionError(
                f"{option} is given for a topic, whose retention is set on the server: tidelog topics alter {name}"
            )
    partitions = given.number("partitions", 1)
    try:
        check_name(name)
        check_partitions(name, partitions)
    except TopicError as error:
        raise OptionError(str(error)) from None
    codec = given.one_of("codec", *CODECS) if "codec" in given else None
    return TopicOptions(name, given.filled("partitionBy"), partitions, codec)


@dataclass(frozen=True)
class TopicRoute:
    """One of the topics to which a batch is written."""

    topic: str
    partition_by: str | None = None  # column with the keys, if the topic's keys come from a function
    needed: tuple[str, ...] = ()  # columns without nulls


@dataclass(frozen=True)
class TopicRoutes:
    """Several topics that are written in one publish, each row to one of them: see routes.py."""

    name: str  # instead of that of the sink: the beginning of the names of fences, stages, and markers
    fence: str  # instead of the query
    topics: tuple[TopicRoute, ...]
    checkpoint: str = ""  # fsspec URL, if it is not on a mounted file system
    batch: int | None = None  # batch number of a query whose batches are written by foreachBatch

    def written(self) -> str:
        """Return the value of the option."""
        return msgspec.json.encode(self).decode()


@dataclass(frozen=True)
class WriteOptions:
    """The options of a write."""

    access: Access
    key: str | None  # None: the column _key names the stream, or there is a topic
    topic: TopicOptions | None
    maxlen: int | None  # entries that a stream retains after a batch
    maxage_ms: int | None  # maximum age of entries
    transaction: tuple[str, int] | None  # txnAppId, txnVersion
    check: str  # AUTO, OFFSETS, ROWS, or NONE
    checkpoint: str  # of a streaming query, as given to writeStream; "" if it was not given there
    copies: ReplicaAcks
    stage_ttl_ms: int
    routes: TopicRoutes | None = None
    name_prefix: str = ""  # prefix of the names of stages, fences, and claims

    def name(self, *parts: str) -> str:
        """Return the name of a fence or a claim."""
        return self.name_prefix + ":".join((SINK_NAME, *parts))


def for_sink(given: OptionValues, kind: str = "") -> WriteOptions:
    """Return the options of a write. ``kind``: BATCH or STREAM when that is known. Raises OptionError as in Rule 1."""
    given.only_for(SINK, kind)
    if ("txnAppId" in given) != ("txnVersion" in given):
        raise OptionError("txnAppId and txnVersion belong together")
    given.at_most_one(("maxlen", "maxage"))
    application, version = given.filled("txnAppId"), given.number("txnVersion")
    check = given.one_of("fenceCheck", AUTO, OFFSETS, ROWS, NONE)
    routes = msgspec.json.decode(given.routes, type=TopicRoutes) if given.routes else None
    if routes is not None:
        if any(name in given for name in ("key", "topic", "maxlen", "maxage", "txnAppId", "namePrefix")):
            raise OptionError(f"{ROUTES} says what is written to")
        if kind and (kind == BATCH) != (routes.batch is not None):
            raise OptionError(f"{ROUTES} has the number of a batch for foreachBatch, and only there")
    elif kind == BATCH and check == OFFSETS:
        raise OptionError("fenceCheck can't be offsets for a batch write, which has no checkpoint: rows or none")
    if kind == BATCH and "fenceCheck" in given and application is None and routes is None:
        raise OptionError("fenceCheck is given without txnAppId and txnVersion: nothing is ever skipped")
    access, replicas = access_of(given), given.number("waitReplicas")
    copies = (
        ReplicaAcks(int(access.movable), IN_PASSING_MS, needed=False) if replicas is None else ReplicaAcks(replicas)
    )
    return WriteOptions(
        access, given.filled("key"), _topic_of(given), given.number("maxlen"),
        given.duration("maxage") if "maxage" in given else None,
        None if application is None or version is None else (application, version), check,
        given.sparks_own.get("checkpointlocation", ""), copies, given.needed("stageTtlMs", 1000),
        routes, given.text("namePrefix"),
    )  # fmt: skip


def is_source(given: OptionValues) -> bool:
    """Return whether these options can only be for a read: they name streams in the way of a source, not of a sink."""
    return any(name in given for name in SUBSCRIPTIONS if name != TOPIC)
