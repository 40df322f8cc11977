"""The runtime of flows.

    graph         builds entities and channels from a declaration
    runningflow   ``RunningFlow``: one instance of a flow: start, pause, drain, stop, state
    node          ``FlowNode``: the task of an entity, its channels, contraflow
    sourcenode    the entity of a source: pulls and sends
    retries       events of a source that are sent again
    settlement    reports settled events to a source, and its dead letters
    gathering     releases events that operators store, if their source waits for them
    operatornode  the entity of an operator
    sinknode      the entity of a sink: writes, settles
    slowstart     limits what a source sends after a pause
    inflight      the unsettled tokens of a source, by age
    channel       ``EventChannel``: the bounded queue from a port to an entity
    connection    opens the connection of a connector, and reopens it after it is lost
"""
