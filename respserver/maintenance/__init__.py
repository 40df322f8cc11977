"""Background work: checkpoints, and returning memory.

    checkpoints  when checkpoints begin, and how one runs
    malloc       returns freed memory to the system after checkpoints
"""
