"""The ``tidelog`` program.

    lines     entries as JSON lines and as text
    load      files into rows into a stream
    program   the ``tidelog`` program
    progress  the bar on standard error
    report    what ``tidelog info`` prints
"""
