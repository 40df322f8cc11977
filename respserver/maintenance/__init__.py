"""Background work: checkpoints, the scrub, and returning memory.

    checkpoints  when checkpoints begin, and how one runs
    scrubbing    the rate of the scrub, which verifies the store
    malloc       returns freed memory to the system after checkpoints
"""
