"""Importing this module fills the command table. Each module with commands must be named here."""

from __future__ import annotations

import importlib
from typing import Final

from commands.declare import TABLE, all_commands

_MODULES: Final = (
    "streams.append", "streams.groups", "streams.range", "streams.read", "streams.staging", "streams.wait",
    "keys.counters", "keys.expiry", "keys.keys", "keys.manystrings", "keys.moving", "keys.scripts", "keys.strings",
    "keys.substrings", "keys.transactions",
    "admin.acl", "admin.client", "admin.config", "admin.connection", "admin.debug", "admin.introspection",
    "admin.memory", "admin.observe", "admin.pubsub", "admin.replication", "admin.server",
)  # fmt: skip

for _name in _MODULES:
    importlib.import_module(f"commands.{_name}")

__all__ = ["TABLE", "all_commands"]
