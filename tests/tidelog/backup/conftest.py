from tests.replication.conftest import servers

__all__ = ["servers"]
