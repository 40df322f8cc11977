"""The server: the ``tidelog-server`` program, connections, execution of commands, roles, upkeep, configuration.

    clock    the clocks, which tests replace
    program  the ``tidelog-server`` program: arguments, start, signals, exit codes
    server   what a running server is made of; the tick
    testing  the server in the test's own process, with a clock moved by hand
"""

__version__ = "0.1.0"  # the one place where the running server's version stands; a test holds pyproject.toml to it
