"""Groups of readers: what they have been given, and what waits for an acknowledgement.

    effects      the mutators of groups: deliver, acknowledge, fall due, drop
    group        a group: offset, time to live, pending list, counters
    pending      messages that wait for an acknowledgement: by ID, by due time and by the time they are given up
    pendingdump  a pending list as bytes: TLP2, and TLP1 still read
    sortedrows   sorted rows of fixed width in byte blocks: what indexes without Python objects are made of
"""
