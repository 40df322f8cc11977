"""Interceptors: process bytes before a codec decodes them, or after it encoded them.

    base         finds interceptors by name
    framing      ``separate``, ``length_prefixed``, ``textual_length_prefixed``: split a stream into messages
    multiline    ``multiline``: joins the lines of one message
    syslogframing  ``syslog_framing``: splits a stream of syslog messages
    compression  ``gzip``, ``zlib``, ``zstd``, ``lz4``, ``decompress``
    plain        ``base64``, ``remove_empty``, ``ingest_timestamp``
    collecting   ``chunk``, ``collect``: join several messages
    gelf         ``gelf``: joins messages that were split into several datagrams
"""
