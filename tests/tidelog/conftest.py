from tidelog.testing import tidelog_process, tidelog_server

__all__ = ["tidelog_process", "tidelog_server"]
