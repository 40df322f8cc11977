"""What each command means: one declaration per command, everything that is published about it derives from that.

``declare`` holds the declaration language and the table, ``registry`` fills the table, ``context`` and ``session`` are
what handlers are given. No handler does I/O, reads a clock or waits.
"""
