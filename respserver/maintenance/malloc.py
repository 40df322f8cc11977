"""Returns freed memory to the system.

glibc retains freed memory between blocks in use, which can be tens of megabytes after many appends. Checkpoints free
more memory at a time than anything else, that of the nodes that they have stored. Memory is therefore returned after
checkpoints.
"""

from __future__ import annotations


def trim_memory() -> None:
    """Call malloc_trim(). Thread-safe; takes some milliseconds without the GIL. Does nothing without glibc."""
    try:
        import ctypes  # imported here, because it is rarely needed

        trim = ctypes.CDLL(None).malloc_trim
    except (ImportError, OSError, AttributeError):
        return
    trim(ctypes.c_size_t(0))
