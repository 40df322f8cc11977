"""``/metrics`` of the server, in the text format of Prometheus.

    families    all metrics, each declared once
    infofields  the fields of INFO as metrics
    text        the text format
    selection   the walk over all keys: totals, and the largest streams
    values      the values of the server, its server group, and its replicas
    keyvalues   the values of streams and their groups
    slices      generators that the event loop runs in slices
    endpoint    the HTTP server, in a thread
    exporter    the part of the server that connects the two threads
"""
