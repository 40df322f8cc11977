"""Groups of readers: what was delivered to them, and what waits for an acknowledgement.

    sortedrows   sorted rows of fixed width: an ordered set of bytes, without an object per row
    pendingdump  a pending list as bytes: TLP2, and TLP1, which is still read
    runs         the runs of a pending list when many messages change together
    pending      messages that wait for an acknowledgement: by ID, by due time and by the time they are given up
    group        a group: offset, time to live, pending list, counters
    effects      the mutators of groups: deliver, acknowledge, fall due, drop
    overdue      messages that are given up, and their dead letters
"""
