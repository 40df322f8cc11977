from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tidelog.client.entries import StreamId
from tidelog.spark.options import ReadOptions, TopicRoute, TopicRoutes, access_of, for_sink, for_source, given_of
from tidelog.spark.optionvalues import BATCH, DECLARED, ROUTES, STREAM, OptionError, OptionValues
from tidelog.spark.positions import EARLIEST, LATEST, Position
from tidelog.testing import Server
from tidelog.transport.access import Access
from tidelog.transport.connection import BlockingConnection
from tidelog.transport.leader import LeaderConnection, UnreachableError

pytestmark = pytest.mark.quick

SUB = {"subscribe": "a"}


def source(kind: str = "", **options: str) -> ReadOptions:
    return for_source(OptionValues({name.replace("__", "."): value for name, value in options.items()}), kind)


def test_defaults_are_those_of_the_kafka_source() -> None:
    stream, batch = source(STREAM, **SUB), source(BATCH, **SUB)
    assert (stream.starting.everywhere, batch.starting.everywhere) == (LATEST, EARLIEST)
    assert batch.ending.everywhere == LATEST
    assert (stream.max_offsets, stream.min_offsets, stream.min_partitions) == (None, None, None)
    assert (stream.max_delay_ms, stream.fail_on_loss, stream.mode) == (15 * 60_000, True, "permissive")
    assert stream.access == Access()
    assert not stream.from_replica


def test_how_servers_are_reached() -> None:
    options = {
        "url": "redis://a, rediss://b", "username": "u", "password": "p", "tlsCaFile": "/ca", "tlsCertFile": "/cert",
        "tlsKeyFile": "/key", "tlsVerify": "false", "connectTimeoutMs": "1", "readTimeoutMs": "2",
        "fetchOffset__numRetries": "3", "fetchOffset__retryIntervalMs": "4",
    }  # fmt: skip
    expected = Access(("redis://a", "rediss://b"), "u", "p", True, "/ca", "/cert", "/key", False, 1, 2, 3, 4)
    assert source(**SUB, **options).access == expected


def test_sentinels() -> None:
    options = {"sentinels": "a, b:5,[::1],rediss://c:6", "sentinelMaster": "tide", "sentinelPassword": "q"}
    access = source(**SUB, **options).access
    assert access.sentinels == ("redis://a:26379", "redis://b:5", "redis://[::1]:26379", "rediss://c:6")
    assert (access.service, access.sentinel_username, access.sentinel_password) == ("tide", None, "q")
    secure = source(**SUB, tls="true", sentinels="a,redis://b", sentinelMaster="tide").access
    assert secure.sentinels == ("rediss://a:26379", "redis://b:26379")


def test_messages_about_servers_name_options(tidelog_server: Server) -> None:
    once = {"fetchOffset__numRetries": "0", "fetchOffset__retryIntervalMs": "1"}
    access = source(**SUB, url="redis://127.0.0.1:1", **once).access
    with pytest.raises(UnreachableError, match=r"\(fetchOffset.numRetries, fetchOffset.retryIntervalMs\); the last "):
        LeaderConnection(access, "test").replicas()
    access = source(**SUB, url="redis://127.0.0.1:1,redis://127.0.0.1:2", **once).access
    with pytest.raises(UnreachableError, match=r"no leader among url \(redis://127.0.0.1:1: .*; redis://127.0.0.1:2: "):
        LeaderConnection(access, "test").replicas()
    url = tidelog_server.url.replace("redis:", "rediss:")
    with pytest.raises(FileNotFoundError, match=r"^tlsCaFile: no such file here: /nowhere"):
        BlockingConnection(source(**SUB, url=url, tlsCaFile="/nowhere").access, url, "test")


def test_names_are_taken_in_any_case() -> None:
    assert for_source(OptionValues({"SUBSCRIBE": "a", "minpartitions": "3"})).min_partitions == 3


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({"subscribe": "a, b"}, ("a", "b")),
        ({"assign": '["a,b", " c"]'}, ("a,b", " c")),
        ({"assign": '{"a": [0], "b": [0]}'}, ("a", "b")),
    ],
)
def test_subscriptions(options: dict[str, str], keys: tuple[str, ...]) -> None:
    assert source(**options).subscription.keys == keys


@pytest.mark.parametrize(
    ("options", "by_key"),
    [
        ({"startingOffsets": '{"a": "17.3"}'}, Position("id", StreamId(17, 3))),
        ({"startingOffsets": '{"a": "17-3"}'}, Position("id", StreamId(17, 3))),
        ({"startingOffsets": '{"a": 17}'}, Position("id", StreamId(17, 0))),
        ({"startingOffsets": '{"a": "earliest"}'}, EARLIEST),
        ({"startingOffsets": '{"a": -2}'}, EARLIEST),
        ({"startingOffsets": '{"a": -1}'}, LATEST),
        ({"startingOffsetsByTimestamp": '{"a": 17}'}, Position("time", StreamId(17, 0))),
    ],
)
def test_places_by_key(options: dict[str, str], by_key: Position) -> None:
    assert source(STREAM, **SUB, **options).starting.named("a") == by_key


WRONG = [
    ("", {}, "one of subscribe, subscribePattern, assign"),
    ("", {"subscribe": "a", "assign": '["a"]'}, "subscribe and assign contradict"),
    ("", SUB | {"failOnMissing": "x"}, "failOnMissing must be true or false"),
    ("", SUB | {"startingOffsetsByTimestampStrategy": "x"}, "Strategy must be one of error, latest"),
    ("", SUB | {"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition must be a whole number, at least 1"),
    ("", SUB | {"maxBytesPerTrigger": "1g"}, "maxBytesPerTrigger must be a whole number, at least 1"),
    (BATCH, SUB | {"maxBytesPerTrigger": "1"}, "maxBytesPerTrigger is for stream reads only"),
    ("", SUB | {"sentinels": "a"}, "sentinels need sentinelMaster"),
    ("", SUB | {"sentinels": "a", "sentinelMaster": "t", "url": "redis://a"}, "url and sentinels contradict"),
    ("", SUB | {"sentinels": "a:b", "sentinelMaster": "t"}, "sentinels must be host:port, several by commas: 'a:b'"),
    ("", SUB | {"sentinels": "http://a", "sentinelMaster": "t"}, "sentinels must be host:port"),
    ("", SUB | {"sentinelMaster": "t"}, "sentinelMaster is given without sentinels"),
    ("", SUB | {"sentinelPassword": "t"}, "sentinelPassword is given without sentinels"),
    ("", SUB | {"sentinels": "a", "sentinelMaster": "t", "sentinelUsername": "u"}, "without sentinelPassword"),
    ("", {"subscribe": "a", "subscribePattern": "a"}, "subscribe and subscribePattern contradict"),
    ("", {"subscribe": ""}, "subscribe is empty"),
    ("", {"subscribe": "a,,b"}, "subscribe has an empty key"),
    ("", {"subscribe": "a,a"}, "subscribe names a key twice"),
    ("", {"subscribePattern": "("}, "subscribePattern is no regular expression"),
    ("", {"assign": "a"}, "assign must be JSON"),
    ("", {"assign": '{"a": [1]}'}, "assign must be a JSON array"),
    ("", SUB | {"startingOffset": "earliest"}, r"unknown option: startingOffset \(did you mean startingOffsets\?\)"),
    ("", SUB | {"path": "/x"}, "unknown option: path"),
    ("", SUB | {"topic": "a"}, "subscribe and topic contradict each other"),
    ("", {"topic": "topic"}, "topic 'topic': a name has"),
    ("", {"topic": "a", "startingOffsets": '{"a:x": "1.0"}'}, "names key 'a:x', which is no partition of the topic"),
    ("", SUB | {"startingOffsets": "yesterday"}, "startingOffsets must be earliest, latest or JSON"),
    ("", SUB | {"startingOffsets": "[1]"}, "startingOffsets must be a JSON object"),
    ("", SUB | {"startingOffsets": "{}"}, "startingOffsets names no key"),
    ("", SUB | {"startingOffsets": '{"a": "x.1"}'}, "startingOffsets for key 'a'"),
    ("", SUB | {"startingOffsets": '{"a": true}'}, "startingOffsets for key 'a'"),
    ("", SUB | {"startingOffsets": '{"b": "1.0"}'}, "startingOffsets names key 'b', which subscribe does not"),
    ("", {"subscribe": "a,b", "startingOffsets": '{"a": "1.0"}'}, "startingOffsets lacks key 'b'"),
    ("", {"subscribePattern": "a.*", "startingOffsets": '{"b": "1.0"}'}, "which subscribePattern does not match"),
    ("", SUB | {"startingTimestamp": "1", "startingOffsets": "earliest"}, "startingTimestamp and startingOffsets"),
    ("", SUB | {"startingTimestamp": "now"}, "startingTimestamp must be a whole number"),
    ("", SUB | {"startingOffsetsByTimestamp": '{"a": "1"}'}, "startingOffsetsByTimestamp for key 'a'"),
    ("", SUB | {"endingOffsets": "earliest"}, "endingOffsets can't be earliest"),
    (BATCH, SUB | {"startingOffsets": "latest"}, "startingOffsets can't be latest"),
    (BATCH, SUB | {"startingOffsets": '{"a": -1}'}, "startingOffsets can't be latest, as it is for key 'a'"),
    (BATCH, SUB | {"maxOffsetsPerTrigger": "1"}, "maxOffsetsPerTrigger is for stream reads only"),
    (BATCH, SUB | {"minOffsetsPerTrigger": "1"}, "minOffsetsPerTrigger is for stream reads only"),
    (STREAM, SUB | {"endingOffsets": "latest"}, "endingOffsets is for batch reads only"),
    (STREAM, SUB | {"endingTimestamp": "1"}, "endingTimestamp is for batch reads only"),
    (STREAM, SUB | {"endingOffsetsByTimestamp": '{"a": 1}'}, "endingOffsetsByTimestamp is for batch reads only"),
    ("", SUB | {"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be a whole number, at least 1"),
    ("", SUB | {"maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "2"}, "minOffsetsPerTrigger .* is above"),
    ("", SUB | {"maxTriggerDelay": "1m"}, "maxTriggerDelay is given without minOffsetsPerTrigger"),
    ("", SUB | {"minOffsetsPerTrigger": "1", "maxTriggerDelay": "soon"}, "maxTriggerDelay must be a duration"),
    ("", SUB | {"minPartitions": "-1"}, "minPartitions must be a whole number"),
    ("", SUB | {"maxPartitions": "0"}, "maxPartitions must be a whole number, at least 1"),
    ("", SUB | {"maxPartitions": "3", "minPartitions": "4"}, r"minPartitions \(4\) is above maxPartitions \(3\)"),
    ("", SUB | {"failOnDataLoss": "yes"}, "failOnDataLoss must be true or false"),
    ("", SUB | {"groupIdPrefix": "a b"}, "groupIdPrefix must be printable ASCII"),
    ("", SUB | {"maxBytesPerPartition": "16m"}, "maxBytesPerPartition must be a whole number, at least 1"),
    ("", SUB | {"historyTimeout": "0s"}, "historyTimeout must be above zero"),
    ("", SUB | {"history": "objects"}, "history must be one of auto, direct, server"),
    ("", SUB | {"readFrom": "anywhere"}, "readFrom must be one of leader, replica"),
    ("", SUB | {"mode": "strict"}, "mode must be one of permissive, dropmalformed, failfast"),
    ("", SUB | {"url": "http://x"}, "url must be redis://"),
    ("", SUB | {"url": "rediss://x", "tls": "false"}, "tls is false, and url says rediss"),
    ("", SUB | {"tlsCaFile": "/x"}, "tlsCaFile is given, but neither"),
    ("", SUB | {"tls": "true", "tlsCertFile": "/x"}, "tlsCertFile and tlsKeyFile belong together"),
    ("", SUB | {"tlsKeyPassword": "/x"}, "tlsKeyPassword is given, but neither"),
    ("", SUB | {"tls": "true", "tlsCheckHostname": "x"}, "tlsCheckHostname must be true or false"),
    ("", SUB | {"url": "redis://h?ssl_certfile=/x"}, "url redis://h: ssl_certfile is for TLS: write rediss://"),
    ("", SUB | {"url": "redis://h?retries=5"}, "url redis://h: unknown option 'retries'"),
    ("", SUB | {"url": "redis://h?password=x", "password": "y"}, "password is given, and url has one too"),
    ("", SUB | {"username": "u"}, "username is given without password"),
    ("", SUB | {"url": "redis://:x@h", "password": "y"}, "password is given, and url has one too"),
    ("", SUB | {"connectTimeoutMs": "0"}, "connectTimeoutMs must be a whole number, at least 1"),
    ("", SUB | {"readTimeoutMs": "1s"}, "readTimeoutMs must be a whole number"),
    ("", SUB | {"fetchOffset.numRetries": "x"}, "fetchOffset.numRetries must be a whole number"),
    ("", SUB | {"fetchOffset.retryIntervalMs": ""}, "fetchOffset.retryIntervalMs must be a whole number"),
    ("", SUB | {"maxlen": "5"}, "maxlen is an option of the sink"),
]


@pytest.mark.parametrize(("kind", "options", "message"), WRONG)
def test_errors_name_the_option(kind: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        for_source(OptionValues(options), kind)


def test_every_option_is_tried_with_a_wrong_value_unless_it_accepts_all() -> None:
    tried = {name for _, options, _ in WRONG for name in options} | {"username", "password", "tlsKeyFile", "tlsVerify"}
    source_options = {option.name for option in DECLARED if option.side != "sink"}
    assert source_options <= tried


def test_the_documentation_has_every_option() -> None:
    text = (Path(__file__).parents[3] / "docs/spark.md").read_text()
    for option in DECLARED:
        row = re.search(rf"^\| `{re.escape(option.name)}` \|(.*)$", text, re.MULTILINE)
        assert row is not None, option.name
        assert not option.default or f"`{option.default}`" in row[1], option.name


@pytest.mark.parametrize(
    "access",
    [
        Access(),
        Access(("redis://a:1", "redis://b:2"), "user", "secret", retries=3, retry_ms=5, connect_ms=7, read_ms=9),
        Access(tls=True, ca_file="ca", cert_file="cert", key_file="key", verify=False),
        Access(("rediss://h",), cert_file="cert", key_file="key", key_password="p", check_hostname=False),
        Access.of("rediss://u:p@h:1/0?ssl_ca_certs=ca&ssl_certfile=cert&ssl_keyfile=key&socket_timeout=5"),
        Access.of("rediss+sentinel://u:p@h,g:1/main?ssl_certfile=cert&ssl_keyfile=key&sentinel_password=q"),
        Access(
            sentinels=("redis://a:1", "redis://b:2"), service="main", sentinel_username="u", sentinel_password="p",
            password="x",
        ),
    ],
)  # fmt: skip
def test_an_access_as_options(access: Access) -> None:
    assert access_of(OptionValues(given_of(access))) == replace(access, tls=access.secure)


def test_routes_are_for_a_sink_of_topics() -> None:
    routes = TopicRoutes("job:a", "job:a:1", (TopicRoute("orders"), TopicRoute("lines", "_key", ("item",))))
    stream, batch = routes.written(), replace(routes, batch=3).written()
    assert for_sink(OptionValues({ROUTES: stream}), STREAM).routes == routes
    values = OptionValues({ROUTES.lower(): batch, "fenceCheck": "offsets"})
    assert for_sink(values, BATCH).routes == replace(routes, batch=3)
    for given, kind in (({ROUTES: batch}, STREAM), ({ROUTES: stream}, BATCH), ({ROUTES: stream, "topic": "a"}, STREAM)):
        with pytest.raises(OptionError, match=ROUTES):
            for_sink(OptionValues(given), kind)
    with pytest.raises(OptionError, match=f"{ROUTES} is not for a read"):
        for_source(OptionValues(SUB | {ROUTES: stream}))


def test_what_spark_passes_on_of_its_own() -> None:
    given = {"queryname": "copy", "checkpointLocation": "/nowhere"}
    assert for_sink(OptionValues(given), STREAM).checkpoint == "/nowhere"
