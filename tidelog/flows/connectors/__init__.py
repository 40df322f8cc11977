"""Connectors: sources and sinks, in a package for each kind of peer.

    payload        connectors that carry bytes: preprocessors, codec, postprocessors
    ongoingread    a read that continues while pulls are interrupted
    settledprefix  the position up to which all events are settled
    tls            certificates, and the authorities to trust
    brokers        options of the connectors of message brokers
    positionfile   a file that stores the position of a source
    positiondatabase  a file that stores many positions of a source
    batchmembers   the members of an event that the operator ``batch`` composed
    templates      names and other options that are filled from an event
    pathpatterns   patterns of paths, such as ``logs/**/*.log``
    destinations   templates for URLs, paths, and headers
    namedmessages  messages for destinations that are named by templates
    tidelog        streams, dead letters and the WAL on a tidelog server
    redis          lists, pub/sub channels and streams on any Redis-protocol server
    http           HTTP and websockets: clients and servers
    files          files, and the standard streams of the process
    processes      programs that run as child processes
    sockets        TCP, Unix sockets, and UDP
    kafka          topics of Kafka
    amqp           queues and exchanges of AMQP, such as RabbitMQ
    mqtt           topics of an MQTT broker
    nats           subjects of NATS, and streams of JetStream
    objects        objects in S3, Google Cloud Storage, Azure, and directories
    otlp           logs and metrics of OpenTelemetry
    sql            tables and queries of PostgreSQL, MySQL, and SQLite
    cdc            changes of tables of PostgreSQL
    syslog         messages of syslog
    elastic        the bulk API of Elasticsearch and OpenSearch
    builtin        connectors without a peer: timers, test sources, Python functions
"""
