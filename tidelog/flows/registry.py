"""The types of connectors and operators by name; the codecs, preprocessors and postprocessors that are declared by
name, or as {name: {options}}.

The module of a type is imported at its first use, so a flow without Kafka needs no Kafka package. The class has the
same ``type``, and ``Options``.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from tidelog.flows.api.errors import FlowError
from tidelog.options.structs import Problems, Struct, nearest, read

Named: TypeAlias = "str | Mapping[str, Any]"

CONNECTORS: Final[dict[str, str]] = {  # type: module:class
    "null": "tidelog.flows.connectors.builtin.null:NullConnector",
    "script": "tidelog.flows.connectors.builtin.script:ScriptConnector",
    "fault": "tidelog.flows.connectors.builtin.fault:FaultConnector",
    "metronome": "tidelog.flows.connectors.builtin.metronome:MetronomeSource",
    "stdio": "tidelog.flows.connectors.files.stdio:StdioConnector",
    "file": "tidelog.flows.connectors.files.file:FileConnector",
    "http_client": "tidelog.flows.connectors.http.client:HttpClient",
    "http_server": "tidelog.flows.connectors.http.server:HttpServer",
    "websocket_client": "tidelog.flows.connectors.http.websocket:WebsocketClient",
    "websocket_server": "tidelog.flows.connectors.http.websocket:WebsocketServer",
    "subprocess": "tidelog.flows.connectors.processes.subprocess:SubprocessConnector",
    "tcp_client": "tidelog.flows.connectors.sockets.tcp:TcpClient",
    "tcp_server": "tidelog.flows.connectors.sockets.tcp:TcpServer",
    "udp_client": "tidelog.flows.connectors.sockets.udp:UdpClient",
    "udp_server": "tidelog.flows.connectors.sockets.udp:UdpServer",
    "elastic": "tidelog.flows.connectors.elastic.elastic:ElasticSink",
    "metrics": "tidelog.flows.connectors.builtin.metrics:MetricsSource",
    "stream": "tidelog.flows.connectors.tidelog.stream:StreamConnector",
    "wal": "tidelog.flows.connectors.tidelog.wal:WalConnector",
    "dead_letters": "tidelog.flows.connectors.tidelog.deadlettersink:DeadLetterSink",
    "redis_pubsub": "tidelog.flows.connectors.redis.pubsub:RedisPubSub",
    "redis_list": "tidelog.flows.connectors.redis.list:RedisList",
    "redis_stream": "tidelog.flows.connectors.redis.stream:RedisStream",
    "kafka": "tidelog.flows.connectors.kafka.kafka:KafkaConnector",
    "mqtt": "tidelog.flows.connectors.mqtt.mqtt:MqttConnector",
    "nats": "tidelog.flows.connectors.nats.nats:NatsConnector",
    "sql": "tidelog.flows.connectors.sql.sql:SqlConnector",
    "sql_query": "tidelog.flows.connectors.sql.query:SqlQuerySink",
    "postgres_cdc": "tidelog.flows.connectors.cdc.postgrescdc:PostgresCdcSource",
    "syslog": "tidelog.flows.connectors.syslog.syslog:SyslogConnector",
    "object_store": "tidelog.flows.connectors.objects.objectstore:ObjectStoreConnector",
    "otlp": "tidelog.flows.connectors.otlp.otlp:OtlpSource",
    "amqp": "tidelog.flows.connectors.amqp.amqp:AmqpConnector",
    "cron": "tidelog.flows.connectors.builtin.cron:CronSource",
    "exit": "tidelog.flows.connectors.builtin.exit:ExitSink",
}
OPERATORS: Final[dict[str, str]] = {
    "passthrough": "tidelog.flows.operators.passthrough:PassthroughOperator",
    "where": "tidelog.flows.operators.where:WhereOperator",
    "route": "tidelog.flows.operators.route:RouteOperator",
    "select": "tidelog.flows.operators.select:SelectOperator",
    "map": "tidelog.flows.operators.map:MapOperator",
    "enrich": "tidelog.flows.operators.enrich:EnrichOperator",
    "branch": "tidelog.flows.branching.branch:BranchOperator",
    "python": "tidelog.flows.operators.python:PythonOperator",
    "split": "tidelog.flows.operators.split:SplitOperator",
    "unbatch": "tidelog.flows.operators.split:UnbatchOperator",
    "batch": "tidelog.flows.operators.batch:BatchOperator",
    "window": "tidelog.flows.operators.window:WindowOperator",
    "group_by": "tidelog.flows.operators.groupby:GroupByOperator",
    "dedup": "tidelog.flows.operators.dedup:DedupOperator",
    "ratelimit": "tidelog.flows.operators.ratelimit:RateLimitOperator",
    "bucket": "tidelog.flows.operators.bucket:BucketOperator",
    "sample": "tidelog.flows.operators.sample:SampleOperator",
    "delay": "tidelog.flows.operators.delay:DelayOperator",
    "retry": "tidelog.flows.operators.retry:RetryOperator",
    "fallback": "tidelog.flows.operators.fallback:FallbackOperator",
    "counter": "tidelog.flows.operators.counter:CounterOperator",
    "history": "tidelog.flows.operators.history:HistoryOperator",
    "backpressure": "tidelog.flows.operators.backpressure:BackpressureOperator",
    "roundrobin": "tidelog.flows.operators.roundrobin:RoundrobinOperator",
    "percentile": "tidelog.flows.operators.percentile:PercentileOperator",
}


EXTRAS: Final = {  # package: the smallest extra that has it, if this is not ``flows``
    "aio_pika": "flows-amqp", "aiormq": "flows-amqp",
    "aiokafka": "flows-kafka", "cramjam": "flows-kafka", "datasketches": "flows-all", "lz4": "flows-all",
    "nats": "flows-nats", "nkeys": "flows-nats", "aiomqtt": "flows-mqtt", "paho": "flows-mqtt",
    "fsspec": "flows-objects", "pyarrow": "flows-objects",
    "google": "flows-otlp", "google.protobuf": "flows-otlp", "opentelemetry": "flows-otlp",
    "opentelemetry.proto": "flows-otlp",
    "aiomysql": "flows-sql", "psycopg": "flows-sql", "pymysql": "flows-sql",
}  # fmt: skip


def connector(name: str) -> Any:
    """Return the class of a type. Raises FlowError if there is none, or a package is missing."""
    return _found("connector", CONNECTORS, name)


def operator(name: str) -> Any:
    return _found("operator", OPERATORS, name)


def _found(what: str, known: Mapping[str, str], name: str) -> Any:
    where = known.get(name)
    if where is None:
        raise FlowError(f"there is no {what} of type {name!r}; {nearest(name, known)}")
    try:
        return pkgutil.resolve_name(where)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("tidelog"):
            raise
        way = f"pip install 'tidelog[{EXTRAS.get(error.name, 'flows')}]', or see docs/flows.md"
        raise FlowError(f"the {what} {name!r} needs the package {error.name!r}: {way}") from error


def component(what: str, known: Mapping[str, str], given: Named) -> tuple[Any, Struct]:
    """Return the class and the options of a component. ``known`` maps names to "module:class", each with ``Options``.

    Raises ValueError with all errors.
    """
    options: Any = {}
    if isinstance(given, str):
        name = given
    elif isinstance(given, Mapping) and len(given) == 1:
        ((name, options),) = given.items()
        options = {} if options is None else options
    else:
        raise ValueError(f"{given!r} is not a {what}: use a name, or {{name: {{options}}}}")
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"there is no {what} {name!r}; {nearest(str(name), known)}")
    if not isinstance(options, Mapping):
        raise ValueError(f"the {what} {name!r} takes options by name, such as {{{name}: {{...}}}}, and not {options!r}")
    try:
        kind = _found(what, known, name)
    except FlowError as error:
        raise ValueError(str(error)) from error.__cause__
    problems = Problems()
    made = read(kind.Options, options, name, problems)
    if made is None:
        raise ValueError("; ".join(f"{path}: {text}" for path, text in problems.found))
    return kind, made
