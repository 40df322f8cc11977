"""What runs a flow.

    graph         from a declaration to entities and channels
    run           ``Running``: one instance: started, paused, drained, stopped, asked how it is
    node          what entities have in common: the task, forward, back
    sourcenode    the entity that a source is: pulls, sends, is told, tries again
    operatornode  the entity that an operator is
    sinknode      the entity that a sink is: writes, settles
    ramp          begins slowly after a reason that ended by time
    underway      what a source has sent and what is not settled of it
    channel       the bounded way from a port to an entity
    connecting    a connector's connection: made, lost, made again
"""
