"""The stream commands. docs/semantics.md defines what each one does; numbers in brackets are its points.

    append      TAPPEND, TAPPEV, TMAPPEND
    delays      TDELAY
    elements    redelivered messages as elements of replies, sliced out of their nodes while they are sent
    groupread   TREAD for a group: due messages first, then new entries
    groups      TACK, TNACK, TTOUCH, TPENDING, TGROUP
    lookup      the lookup of a stream's group
    manifest    TMANIFEST
    measured    ranges of entries whose sizes are read in slices
    newentries  the new entries of a group's long read, delivered in slices
    policy      the words of a retention policy
    range       TRANGE, TREVRANGE, TLEN, TCOUNT, TSEEK, TINFO
    read        TREAD, and reading without a group
    readargs    TREAD's arguments: the reader's position, and the options
    replies     ranges of entries as replies, built or streamed
    rows        FIELDS and VALUES: many entries in one command
    settings    TCFG
    staging     TSTAGE, TPERSIST, TPUBLISH, TDROP
    wait        TWAIT
"""
