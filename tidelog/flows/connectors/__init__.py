"""Connectors: a module for each, by the type's name, and

    base         ``Source``, ``Sink``
    context      what they may use of the runtime
    options      options that all have
    wire         those that carry bytes: preprocessors, codec, postprocessors
    null          no end of events; takes everything
    script        does with each event what it is told
    fault         slow, and breaks, by chance
    metronome     an event each so many seconds
    python       functions and classes of a program
    http_client   a request for each event, its response as an event
    http_server   requests as events, answered by what became of them
    websocket     messages in both directions: a client, a server
    elastic       documents by the bulk API, each settled by its own result
    metrics       what the flows of this process count
    http_calls    requests: what http_client and elastic have in common
    http_options  who one is, TLS, what a status means
    limit         how many requests may be under way
    templates     text with places for an event's meta
    listener      one HTTP server for each address of the process
    listening     options of connectors that wait for HTTP connections
    cors          what pages of other origins may read
    encodings     bodies of requests, unpacked within a limit
    inbox         what was read and is not pulled yet
    stream       streams of the server; its parts:
    groupread    reading with a group: redelivery until an entry is settled
    plainread    reading without one
    streamwait   waiting for entries without asking
    streamwrite  the sink
    fieldcodec   entries as values, and back
    server       the server of a flow, and who waits for news on it
    letters      dead letters of flows
    dead_letters  the sink for them
    wal          makes any source durable
    cron         an event at each time
    redis        redis_pubsub, redis_list
    redisstream  redis_stream
    processing   lists of what is under way (redis_list)
    redisbase    what these have in common
    kafka        topics of Kafka
    prefix       up to where all is settled
    descriptors  waiting for pipes and sockets
    tailing      one file that is read, and which comes after it (file)
    appending    a file that is written and rotated (file)
    stdio        standard input, output, error
    file         a file that is read, once or as it grows; one that is written
    tcp          streams over TCP: client and server
    udp          datagrams: client and server
    exit         ends its flow, or the process
"""
