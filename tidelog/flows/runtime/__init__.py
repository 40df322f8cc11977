"""The runtime of flows.

    graph          builds entities and channels from a declaration
    runningflow    ``RunningFlow``: one instance of a flow: start, pause, drain, stop, state
    node           ``FlowNode``: the task of an entity, its channels, contraflow
    sourcenode     the entity of a source: the task that pulls, and the order of its parts
    sourcebreaker  the reasons for which a source sends nothing, and those that it adds itself
    latencysamples  the time from sending to settlement, for some events of a source
    sourcewindow   the events of a source in flight, their age, and how many more may be sent
    sourcesender   sends the batches of a source, with a token for each event
    sourcestatus   why a source sends nothing, and the age of its events
    failedevents   ``on_error``: what follows the failure of an event
    retries        events of a source that are sent again
    settlement     reports settled events to a source, and its dead letters
    operatornode   the entity of an operator
    sinknode       the entity of a sink: writes, settles
    channel        ``EventChannel``: the bounded queue from a port to an entity
    connection     opens the connection of a connector, and reopens it after it is lost
"""
