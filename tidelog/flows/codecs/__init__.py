"""Codecs: one message's bytes as a value, and back.

    base      finds them by name
    json      json, jsonl
    plain     string, binary
    msgpack   msgpack
    csv       csv
    csvrecords  a stream of CSV cut into records
    yaml      yaml
    core      plain scalars of YAML 1.2
    influx    InfluxDB's line protocol
    syslog    RFC 5424 and RFC 3164
"""
