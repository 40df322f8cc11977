"""The replay log of a job, which alone determines its progress.

    marker      the entries of the replay log: the input of each epoch
    origin      the positions at which a generation started
    progress    the last marker of each partition
    positions   the position of each partition in each input
"""
