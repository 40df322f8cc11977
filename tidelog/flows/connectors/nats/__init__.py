"""Subjects of NATS.

    nats  the connector ``nats``: a source and a sink, with and without JetStream
"""
