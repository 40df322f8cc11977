"""``branch``: a part of each event passes through operators or a request, and the response is stored in the event.

    branch         the operator
    branchoptions  its options
    innerflow      the flow within the operator
    responsecache  responses in memory, or on a Redis server

It is above the runtime, because the operators and the connector within it are a running flow of their own.
"""
