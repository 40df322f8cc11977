"""Importing this module fills the command table. Each module with commands must be named here."""

from __future__ import annotations

import importlib
from typing import Final

from commands.declare import TABLE, all_commands

_MODULES: Final = (
    "streams.append", "streams.delays", "streams.groups", "streams.manifest", "streams.range", "streams.read",
    "streams.settings", "streams.staging", "streams.wait",
    "redis_streams.add", "redis_streams.claim", "redis_streams.delete", "redis_streams.groups", "redis_streams.info",
    "redis_streams.pending", "redis_streams.ranges", "redis_streams.read", "redis_streams.readgroup",
    "redis_streams.trim",
    "keys.counters", "keys.expiry", "keys.increx", "keys.keys", "keys.manystrings", "keys.rename", "keys.scripts",
    "keys.strings", "keys.substrings", "keys.transactions",
    "admin.acl", "admin.client", "admin.cluster", "admin.config", "admin.connection", "admin.debug",
    "admin.introspection", "admin.members", "admin.memory", "admin.observe", "admin.pubsub", "admin.replication",
    "admin.server", "admin.slotmap", "admin.tracking", "help",
)  # fmt: skip

for _name in _MODULES:
    importlib.import_module(f"commands.{_name}")

__all__ = ["TABLE", "all_commands"]
