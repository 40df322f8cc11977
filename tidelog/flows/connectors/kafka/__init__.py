"""Topics of Kafka.

    kafka    the connector ``kafka``: a source and a sink
    targets  the topic, the key and the headers of a message
"""
