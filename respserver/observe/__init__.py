"""Stats, INFO, slow log and log lines.

    clienttotals  sums over all clients
    info          the text of INFO
    logs          log lines in redis-server's format
    slowlog       slow log, latency events, histograms
    stalls        the longest stall of the event loop in the last ten minutes
    stats         counters, and records of stats that other parts fill in
    streamtotals  sums over all streams
    traffic       bytes and chunks to and from clients
"""
