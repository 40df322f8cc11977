"""Returning freed memory to the system.

glibc keeps freed memory between blocks in use: after many appends some ten megabytes. Checkpoints free the most at once
(the nodes that they have stored), so memory is returned after them.
"""

from __future__ import annotations


def give_back() -> None:
    """Call malloc_trim(), on any thread. Takes some milliseconds, without the GIL. Does nothing without glibc."""
    try:
        import ctypes  # here, because it is rarely needed

        trim = ctypes.CDLL(None).malloc_trim
    except (ImportError, OSError, AttributeError):
        return
    trim(ctypes.c_size_t(0))
