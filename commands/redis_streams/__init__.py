"""Redis's own stream commands, on the same streams and groups as the T commands.

    add         XADD
    claim       XCLAIM, XAUTOCLAIM
    consumers   consumers; the owner of a pending message, and its idle time
    delete      XDEL, XDELEX, XACKDEL
    deliveries  the messages that XREADGROUP delivers: effects, and elements of the reply
    elements    redelivered messages as elements of replies, in the form of these commands
    groups      XGROUP
    ids         IDs as these commands read and print them
    info        XINFO
    lag         how many entries a group has read, and how many it has not read
    limits      MAXCOUNT and MAXSIZE of XREAD and XREADGROUP
    longread    XREADGROUP of many messages, in slices
    options     the options of XADD and XTRIM
    pending     XACK, XPENDING, XNACK
    ranges      XRANGE, XREVRANGE, XLEN
    read        XREAD
    readargs    XREADGROUP's arguments
    readgroup   XREADGROUP
    replies     entries as replies, built or streamed
    sizedread   XREAD with a large MAXSIZE, in slices
    trim        XTRIM, XSETID; trimming by XADD
    trimming    trimming with DELREF and ACKED, in slices
"""
