"""Operators: the steps of pipelines. Their contract is in ``flows.api.operator``, their options are in
``docs/flows-operators.md``.

    passthrough     ``passthrough``: passes events on unchanged

    batch           ``batch``: many events as one
    counter         ``counter``: counts events
    delay           ``delay``: passes events on later
    groupby         ``group_by``: aggregates the items of a batch
    enrich          ``enrich``: data from a file
    history         ``history``: records the path of an event
    map             ``map``: computes fields of the value and of the metadata
    python          ``python``: calls a Python function
    route           ``route``: another port for each kind of event
    sample          ``sample``: passes a share of the events on
    select          ``select``: a new value, computed by JMESPath
    split           ``split``, ``unbatch``: one event as many
    where           ``where``: passes on the events for which a JMESPath expression is true
    window          ``window``: tumbling, sliding, and session windows

    backpressure    ``backpressure``: slows sources down while a sink is slow
    bucket          ``bucket``: a rate limit for each class and group
    dedup           ``dedup``: one event per key
    fallback        ``fallback``: another output for failed events
    percentile      ``percentile``: passes on the share of events that is processed in time
    ratelimit       ``ratelimit``: events per second, with token buckets of this process or on the server
    retry           ``retry``: retries before the source is notified
    roundrobin      ``roundrobin``: several outputs in turn

    aggregates      the aggregates of windows and groups
    aggregatekinds  the kinds of aggregates: sums, percentiles, and so on
    copies          copies of events in flight, which can be sent again
    executors       the threads and processes in which functions run
    fieldpaths      fields of values, by path
    hops            hop tokens: the batches of an operator that are in flight
    jmescompiler    compiles expressions (``flows.expressions``) to closures
    keytext         the result of a JMESPath expression as text
    openwindows     open windows: what all kinds have in common; windows by time and by count
    lookuptable     the table of ``enrich``: the rows of a file by key
    serverrequests  requests to the tidelog server, repeated until it replies
    sessionwindows  session windows
    slices          long computations in steps
    slidingwindows  sliding windows, composed of panes
    tokenbuckets    token buckets
    userfunctions   Python functions as operators: lookup, inspection; ``@operator``
"""
