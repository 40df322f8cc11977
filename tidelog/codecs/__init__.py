"""Codecs: how a record becomes an entry, and an entry a record.

    shapes   what a record type looks like: its fields and their types
    plain    every field of the record is a field of the entry
    choose   ``codec_for``: the codec of a record type, by its name
    exact    whether decoding returns the record that was sent
    carrying  makes record types picklable
    packed   the whole record is one field, ``data``, in JSON or MessagePack, compressed if wanted

Rule 1: a codec knows no topic and no server. The name of a codec says all that another language needs to read it.
Rule 2: plain values are text: what redis-cli prints and Spark reads. None is a field that is not there.
"""

from tidelog.codecs.choose import Codec, codec_for
from tidelog.codecs.shapes import CodecError, UndecodableError

__all__ = ["Codec", "CodecError", "UndecodableError", "codec_for"]
