"""The server: the ``tidelog-server`` program and the parts of a running server.

    clock       the clocks, which tests replace
    data        the open data directory, and the keyspace built from it
    exhaustion  what happens without memory: an error reply, or the end
    gates       reasons to refuse commands or to hold them back, as they are now
    memory      what is held in memory, and the gate that maxmemory closes
    presence    whether the server was there for its clients: served time
    program     the ``tidelog-server`` program: arguments, start, signals, exit codes
    reporting   INFO and MEMORY, gathered from the parts
    restoring   ``tidelog-server --restore``: a data directory from a recorded full copy
    server      builds all parts; the tick, the start, the end
    testing     a server in the test's own process, with a clock that the test moves
    threads     work that a thread does
    ticks       the write path: log, then reply

The other parts are in folders by subject. Imports between them go one way: each uses only those before it in this list:
``config``, ``observe``, the files here, ``clients``, ``execution``, ``roles``, ``upkeep``.
"""

__version__ = "0.1.0"  # a test compares it with pyproject.toml
