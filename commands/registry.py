"""Importing this module fills the command table: a module of commands that isn't named here has none."""

from __future__ import annotations

import importlib
from typing import Final

from commands.declare import TABLE, all_commands, find, lookup, top_commands

MODULES: Final = (
    "client", "config", "connection", "debug", "expiry", "groups", "introspection", "keys", "memory", "observe",
    "pubsub", "read", "replication", "server", "staging", "streams", "strings", "transactions",
)  # fmt: skip

for _name in MODULES:
    importlib.import_module(f"commands.{_name}")

__all__ = ["MODULES", "TABLE", "all_commands", "find", "lookup", "top_commands"]
