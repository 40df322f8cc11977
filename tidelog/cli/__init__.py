"""The ``tidelog`` program, also ``python -m tidelog.cli``.

    program   the commands load, tail, dump, info
    backups   those of backups: backup, backups, verify, restore
    topics    tidelog topics: what topics there are, and what changes them
    sending   tidelog send, sendmany: records into a topic
    connect   the option --url, and a server's errors
    load      rows of a file into a stream
    lines     entries as JSON lines and as text
    report    what ``tidelog info`` prints
    progress  a progress bar
"""
