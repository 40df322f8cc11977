"""Groups of readers: what was delivered to them, and what waits for an acknowledgement.

    sortedrows   sorted rows of fixed width: an ordered set of bytes, without an object per row
    pendingdump  a pending list as bytes: TLP2 and, with consumers, TLP3; and TLP1, which is still read
    runs         the runs of a pending list when many messages change together
    owned        the runs that consumers own, by owner and by last delivery
    runtable     messages and their runs: the table below a pending list
    pending      messages that wait for an acknowledgement: by ID, by due time, by owner, and when they are given up
    group        a group: offset, time to live, pending list, consumers, counters
    effects      the mutators of groups: deliver, acknowledge, fall due, drop, own
    overdue      messages that are given up, and their dead letters
"""
