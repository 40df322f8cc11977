"""The contracts of flows: what connectors and operators implement, and what the runtime offers them.

    event             ``Event``, and copies of values
    tokens            ``Token``, ``TokenGroup``: the settlement of an event
    signals           DRAIN, ``Trigger``, ``Restore``
    breaker           ``Breaker``: the set of reasons for which a source or an output does not send
    errors            the exceptions
    connector         ``Source``, ``Sink``
    connectorcontext  what the runtime offers a connector
    connectoroptions  the options that every connector has
    operator          ``Operator``, and what the runtime offers it
    flowcontext       what all entities of an instance of a flow share
    gathering         releases events that operators store, if a source or an operator waits for them
    givenup           the log messages about events that are not retried
    cancellation      cancels tasks, and distinguishes who cancelled a task
"""
