"""Interceptors: what is done to bytes before a codec reads them, and after it wrote them.

    base         finds them by name
    framing      separate, length_prefixed, textual_length_prefixed: a stream cut into messages
    compression  gzip, zlib, zstd, lz4, decompress
    plain        base64, remove_empty, ingest_timestamp
    collecting   chunk, collect: several messages as one
    gelf         messages in several datagrams
"""
