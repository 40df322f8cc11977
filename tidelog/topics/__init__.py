"""Topics: streams in parts, with records of one type.

    partition   which partition a key belongs to: CRC-32 of its bytes
    facts       what stands on the server about a topic, and what of it a program must agree with
    changes     the types that a field can change to, so that stored values can be read
    agreement   a declaration and what stands there become one
    topic       ``Topic``: the declaration, and sending from asyncio; ``topic.sync`` for threads
    lane        calls of many tasks on one connection, in their order
    sending     records into calls
    producer    sending exactly once
    delayed     records that are sent later: how they wait
    moving      and how they are moved to their partition when it is time
    retention   what may be evicted
    deadletters  events that were given up: written, read, replayed, purged
    admin       list, grow, alter, trim, delete

A topic ``orders`` with 16 partitions is the streams ``orders:0`` to ``orders:15``. The string ``topic:orders`` says
what it is, in JSON.
"""

from tidelog.codecs import CodecError, UndecodableError
from tidelog.topics.facts import Facts, Retention, TopicError, TopicMismatchError
from tidelog.topics.partition import partition_of
from tidelog.topics.producer import Producer, SyncProducer
from tidelog.topics.sending import TopicFullError
from tidelog.topics.topic import Place, SyncTopic, Topic

__all__ = [
    "CodecError",
    "Facts",
    "Place",
    "Producer",
    "Retention",
    "SyncProducer",
    "SyncTopic",
    "Topic",
    "TopicError",
    "TopicFullError",
    "TopicMismatchError",
    "UndecodableError",
    "partition_of",
]
