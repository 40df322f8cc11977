"""The stream engine. It does no I/O and reads no clock: time is an argument.

    model/     IDs, entries, records, and basic data structures
    nodes/     macro nodes: several hundred entries each, in memory and in the store
    groups/    the state of consumer groups
    streams/   streams and stages
    keyspace/  all keys, the mutators, expiry and replay

A module imports only from its own directory and from directories above its own in this list. ``groups`` and ``nodes``
do not import each other.
"""
