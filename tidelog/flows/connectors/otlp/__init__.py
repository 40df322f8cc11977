"""Logs and metrics of OpenTelemetry.

    otlp      the connector ``otlp``: a source
    messages  decodes requests, and encodes responses
    values    log records and data points as plain values
"""
