"""What happens in the background: checkpoints, memory given back.

    checkpoints  when checkpoints happen and how one runs
    malloc       freed memory given back to the system after checkpoints
"""
