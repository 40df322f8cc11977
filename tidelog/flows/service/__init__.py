"""Flows of one process: deployed, replaced, drained, steered over HTTP, seen on a page.

    host      ``Host``: flows by name, their instances
    desired   what people asked for, kept on the tidelog server
    look      what is told of flows, as plain values
    tap       events that pass, for a look at them
    letters   dead letters: listed, replayed
    metrics   /metrics
    guard     who may ask, and what a browser's page may not
    bodies    requests' bodies and answers' errors
    api       the HTTP API: routes and their handlers
    openapi   the same as a document for machines
    page      the page at /
    watchdog  which Python function holds up the event loop
    program   all of it as a process: started, told by signals to stop
"""
