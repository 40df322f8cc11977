"""Connectors without a peer.

    null       produces nothing, accepts everything
    script     returns a configured outcome for each event
    fault      delays and fails at random
    metronome  an event at a fixed interval
    cron       an event at each time of a cron expression
    metrics    the metrics of the flows in this process
    python     Python functions and classes
    exit       ends its flow or the process
"""
