"""How far a job is: what the server has about it, and nothing else counts.

    marker      the entries of the replay log: which epoch read what
    origin      where a generation began
    progress    the last marker of each partition
    positions   where each partition is in each input
"""
