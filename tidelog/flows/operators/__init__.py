"""Operators: what pipelines are made of. ``base`` says what they are; options are in ``docs/flows-operators.md``.

    plain         ``passthrough``

    batch         ``batch``: one event of many
    counter       ``counter``: a number, and events that tell it
    delay         ``delay``: later
    history       ``history``: which way an event went
    python        ``python``: a function of the program
    sample        ``sample``: some
    select        ``select``: a new value by JMESPath
    split         ``split``, ``unbatch``: many events of one
    where         ``where``: those of which a JMESPath is true
    window        ``window``: tumbling windows

    backpressure  ``backpressure``: less, when what is below is slow
    bucket        ``bucket``: so many of each class and group
    dedup         ``dedup``: one of each key
    fallback      ``fallback``: another way for what failed
    percentile    ``percentile``: the share that is in time
    ratelimit     ``ratelimit``: so many a second
    retry         ``retry``: again, before the source hears of it
    roundrobin    ``roundrobin``: several outputs in turn

    aggregates    what windows compute
    functions     functions of the program, found and looked at; ``@operator``
    jmes          JMESPath as closures
    keys          what JMESPath found, as text
    hops          what was sent and is heard of again; ramps; what is late
    copies        copies of what is under way, to send it once more
    rates         token buckets
    sharedrates   the same, shared through the server
    asking        the tidelog server, asked until it answers
    pools         threads and processes that functions run in
"""
