"""Background work: checkpoints, the scrub, repairs, and returning memory.

    checkpoints  when checkpoints begin, and how one runs
    scrubbing    the rate of the scrub, which verifies the store
    repairing    repairs damaged nodes with copies from other members
    malloc       returns freed memory to the system after checkpoints
"""
