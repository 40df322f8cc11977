"""The stream commands. docs/semantics.md says what each does in every corner; numbers in brackets are its points.

    append      TAPPEND, TAPPEV, TMAPPEND
    elements    messages that are delivered again as elements of replies, cut while they are sent
    groupread   TREAD for a group: due messages first, then new entries
    groups      TACK, TNACK, TTOUCH, TPENDING, TGROUP
    newentries  the new entries of a group's long read, delivered some at a time
    range       TRANGE, TREVRANGE, TLEN, TCOUNT, TSEEK, TINFO
    read        TREAD, and reading without a group
    readargs    TREAD's arguments: where the reader is, and the options
    replies     ranges of entries as replies, built or streamed
    rows        FIELDS and VALUES: many entries in one command
    staging     TSTAGE, TPUBLISH, TDROP
    wait        TWAIT
"""
