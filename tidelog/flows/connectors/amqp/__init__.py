"""Queues and exchanges of AMQP 0.9.1, such as RabbitMQ.

    amqp  the connector ``amqp``: a source and a sink
"""
