"""Topics of Kafka.

    kafka  the connector ``kafka``: a source and a sink
"""
