"""Topics: partitioned streams with records of one type.

    partition         the partition of a key: CRC-32 of its bytes
    settings          the properties of a topic that the server stores, and which of them programs must agree on
    typechanges       the types to which a field can change, so that stored values can still be read
    reconcile         compares a declaration with the stored settings, and completes it
    topic             ``Topic``: the declaration, and sending from asyncio
    synctopic         ``topic.sync``: the same for threads
    pipeline          sends the calls of many tasks on one connection, in order
    sending           converts records to calls
    producer          sends records exactly once
    dividedbatch      the same for partitions on several groups of a cluster
    delayed           sends records that join their partition later
    balancing         distributes partitions over the groups of a cluster
    retention         the policies with which the server evicts from the partitions
    groupprogress     how far the groups of a partition have finished its entries
    groupreader       reads streams with a consumer group: entries in flight, acknowledged, returned, touched
    deadletters       dead letters: their format, read, replayed, purged
    deadletteredit    an event of a dead letter with edited fields: its checks, its key
    deadletterwriter  writes dead letters to a queue
    failureactions    the steps of ``on_error``
    admin             list, grow, alter, delete

A topic ``orders`` with 16 partitions is the streams ``orders:0`` to ``orders:15``. The string ``topic:orders`` stores
its settings in JSON.
"""

from tidelog.codecs import CodecError, UndecodableError
from tidelog.topics.partition import partition_of
from tidelog.topics.producer import Producer, SyncProducer
from tidelog.topics.sending import TopicFullError
from tidelog.topics.settings import Retention, TopicError, TopicMismatchError, TopicSettings
from tidelog.topics.synctopic import SyncTopic
from tidelog.topics.topic import PartitionLocation, Topic

__all__ = [
    "CodecError",
    "TopicSettings",
    "PartitionLocation",
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
