"""Background work: compression, checkpoints, the scrub, and repairs.

    sealing      compresses full nodes
    checkpoints  when checkpoints begin, how one runs, and returning freed memory to the system after it
    scrubbing    the rate of the scrub, which verifies the store
    repairing    repairs damaged nodes with copies from other members
"""
