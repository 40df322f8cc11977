"""What happens in the background: expiry, checkpoints, memory given back.

    checkpoints  when checkpoints happen and how one runs
    expiry       what ends by time
    malloc       freed memory given back to the system after checkpoints
"""
