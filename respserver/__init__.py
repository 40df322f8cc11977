"""The server: the ``tidelog-server`` program and the parts of a running server.

    program    the ``tidelog-server`` program: arguments, start, signals, exit codes
    reporting  INFO and MEMORY, gathered from the parts
    restore    ``tidelog-server --restore``: a data directory from a recorded full copy
    server     builds all parts; the tick, start and shutdown
    supervision  notifies systemd
    testing    a server in the test's own process, with a clock that the test advances

The other parts are in directories by subject. Each directory imports only from those before it in this list:
``config``, ``observe``, ``runtime``, ``clients``, ``execution``, ``roles``, ``group``,
``maintenance``, ``tiering``. ``metrics`` uses ``reporting``, too.
"""

__version__ = "0.1.0"  # a test compares it with pyproject.toml
