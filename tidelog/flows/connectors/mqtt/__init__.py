"""Topics of an MQTT broker.

    mqtt        the connector ``mqtt``: a source and a sink
    client      one connection, with acknowledgements by the application, and the outcome of each message
    ackorder    acknowledgements in the order of the messages
"""
