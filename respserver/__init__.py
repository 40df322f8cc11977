"""The server: connections, dispatch, ticks, configuration and the ``tidelog-server`` program."""

__version__ = "0.1.0"  # the one place where the running server's version stands; a test holds pyproject.toml to it
