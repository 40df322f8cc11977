"""Execution: runs the processors of an app in a worker process, from the process down to the bytes.

    worker           ``Worker``: a process with its lease, its executors, and signals
    executor         ``ProcessorExecutor``: one processor in one worker, with the partitions that it owns
    group_creation   creates the groups of a processor at its start position
    partition        ``ActivePartition``: the state of one partition that a processor consumes
    groupline        ``GroupLine``: the connections of a processor to one group, its fetcher and its transactions
    fetcher          reads entries into buffers: TREAD, TWAIT
    claim_watch      ``ClaimWatch``: transactions that are executed only while the claims are held
    buffers          ``Buffer``: the entries of one partition that are in flight
    prefetch         how much is read ahead if partitions have no owner
    consumer         calls the function for the entries of a partition, one by one or in batches
    keyed            calls the function for many events at a time, one per key
    unordered        calls the function for many events at a time, in any order
    events_consumer  calls a function that takes its events itself
    event_actions    the operations of an event: ack, nack, touch, send
    failures         applies the failure policy
    attempts         counts how often processes have died while they processed an event
    acks             acknowledgements, sent in groups
    transactions     appends records and acknowledges events in one step, protected by the claim
    placement        checks that a transactional processor sends to the groups of its partitions
    outputs          ``OutputEntry``: an entry that a transaction appends
    stats            counters

Rule 1: an event is started and acknowledged only while this worker holds the claim of its partition.
"""
