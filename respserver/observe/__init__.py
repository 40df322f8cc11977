"""What the server tells of itself: stats, INFO, slow log, log lines.

    info          INFO, rendered
    logs          log lines in redis-server's shape
    slowlog       slow log, latency events and histograms
    stats         what is counted, and what the parts tell INFO
    streamtotals  sums over all streams
"""
