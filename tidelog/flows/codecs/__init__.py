"""Codecs: encode a value as the bytes of one message, and decode it.

    base         finds codecs by name
    json         ``json``, ``jsonl``
    plain        ``string``, ``binary``
    msgpack      ``msgpack``
    csv          ``csv``
    csvrecords   splits a stream of CSV into records
    yaml         ``yaml``
    yamlscalars  the plain scalars of YAML 1.2
    influx       ``influx``: the line protocol of InfluxDB
    syslog       ``syslog``: RFC 5424 and RFC 3164
"""
