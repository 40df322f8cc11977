"""Logs, metrics, and traces of OpenTelemetry.

    otlp      the connector ``otlp``: a source
    messages  decodes requests, and encodes responses
    values    log records, data points, and spans as plain values
"""
