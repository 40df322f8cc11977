"""The ``tidelog`` program, also ``python -m tidelog.cli``.

    program   the commands: load, tail, dump, info
    load      rows of a file into a stream
    lines     entries as JSON lines and as text
    report    what ``tidelog info`` prints
    progress  the progress bar of a load
"""
