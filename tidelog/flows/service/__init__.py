"""The flows of one process: deployment, replacement, HTTP API, page, metrics.

    host           ``FlowHost``: flows by name, their instances
    desired        the desired state (paused, deployed), stored on the tidelog server
    streamgroups   the groups of stream sources: state, reset; number of dead letters
    flowstatus     the status of a process on the tidelog server
    publisher      writes this status, and follows the desired state
    views          the state of flows as plain values: bodies of the API
    history        takes samples of the figures of each flow, and stores them on the tidelog server
    samples        these figures, as entries of a stream, and combined for a chart
    warnings       the recent warnings of the process
    tap            samples of passing events
    deadletters    lists and replays dead letters
    metrics        /metrics
    accesscontrol  tokens and origins: which requests are served
    requestbodies  bodies of requests, and error responses
    api            the HTTP API: handlers
    openapi        the routes of the API, and the OpenAPI document
    page           the page at /, and the files that draw graphs, which the console serves, too
    reloading      reads the flow files again, and applies what has changed
    watchdog       finds Python functions that block the process
    process        ``tidelog flow run``: start, signals, exit status
"""
