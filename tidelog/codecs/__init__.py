"""Codecs: how a record becomes an entry, and an entry a record.

    recordtypes  record types: their fields and the types of the fields
    plain        every field of the record is a field of the entry
    packed       the whole record is one field, ``data``, in JSON or MessagePack, optionally compressed
    codec        ``codec_for``: the codec of a record type, by its name
    roundtrip    whether decoding returns the record that was sent
    pickling     makes record types picklable

Rule 1: a codec knows no topic and no server. The name of a codec is all that another language needs to read it.
Rule 2: plain values are text, so redis-cli and Spark can show them. A field that is None is omitted.
"""

from tidelog.codecs.codec import Codec, codec_for
from tidelog.codecs.recordtypes import CodecError, UndecodableError

__all__ = ["Codec", "CodecError", "UndecodableError", "codec_for"]
