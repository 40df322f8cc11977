"""The stream commands. What each does in every corner stands in docs/semantics.md; numbers in brackets are its points.

    append      TAPPEND, TAPPEV, TMAPPEND, TRANGE, TREVRANGE, TLEN, TINFO, TCOUNT, TSEEK
    deadletter  what a message becomes when it is given up
    entries     arguments to an entry in wire form; ranges to replies, built or streamed
    groups      TACK, TNACK, TTOUCH, TPENDING, TGROUP
    read        TREAD: plain, blocking, for groups
    rows        FIELDS and VALUES: many entries in one command
    staging     TSTAGE, TPUBLISH, TDROP
"""
