"""Messages of syslog.

    syslog  the connector ``syslog``: a source and a sink
"""
