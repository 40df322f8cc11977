"""The state that all parts of a running server share, and the write path.

    clock         the clocks, which tests replace
    confirmation  what decides when withheld replies may be released
    data          the open data directory, and the keyspace built from it
    deliveries    moves delayed entries to their streams when they are due
    gates         the current reasons to refuse or delay commands
    memory        the memory in use, and the gate that maxmemory closes
    outofmemory   what the server does when a memory allocation fails
    ownership     the slots that this server serves, for the dispatcher and the redirections
    parts         the parts above as one object, for constructors
    servedtime    the time during which the server could serve its clients
    stopping      reports a shutdown that takes long, and ends one that hangs
    threads       runs functions in threads of the event loop's executor
    tickclient    the part of a client's connection that ticks use
    ticks         the write path: log, then reply
    withholding   replies that wait until other servers have the data (replica-acks)
"""
