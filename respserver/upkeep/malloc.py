"""Freed memory, given back to the system.

glibc keeps what lies freed between pieces in use: after a large fill some ten megabytes. A checkpoint frees the most at
once (the nodes that it stored), so that is when to give back.
"""

from __future__ import annotations


def give_back() -> None:
    """Any thread; some milliseconds, in which others go on. Nothing happens where the C library is not glibc."""
    try:
        import ctypes  # here, as not every run comes to this

        trim = ctypes.CDLL(None).malloc_trim
    except (ImportError, OSError, AttributeError):
        return
    trim(ctypes.c_size_t(0))
