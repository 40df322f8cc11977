"""Command tips, as COMMAND INFO shows them: how cluster clients and proxies call a command on several servers.

The tips are those of Redis 8. A command without tips has none in Redis either, or does not exist there.
"""

from __future__ import annotations

from typing import Final

# commands by their tips
_COMMANDS: Final = {
    "nondeterministic_output": """
        client|info client|list cluster|count-failure-reports cluster|getkeysinslot cluster|info cluster|links
        cluster|myshardid cluster|nodes cluster|replicas cluster|shards cluster|slaves cluster|slots dump lastsave
        object|encoding object|freq object|idletime object|refcount pttl time ttl xadd xautoclaim xclaim xinfo|consumers
        xpending xtrim""",
    "nondeterministic_output_order": "command command|docs command|info command|list",
    "request_policy:all_nodes response_policy:all_succeeded": """
        acl|deluser acl|save acl|setuser client|setinfo client|setname config|resetstat config|rewrite config|set
        script|load slowlog|reset""",
    "request_policy:all_nodes response_policy:agg_sum": "latency|reset",
    "nondeterministic_output request_policy:all_nodes response_policy:special": """
        latency|doctor latency|graph latency|histogram latency|history latency|latest""",
    "request_policy:all_nodes nondeterministic_output": "slowlog|get",
    "request_policy:all_nodes response_policy:agg_sum nondeterministic_output": "slowlog|len",
    "request_policy:all_shards response_policy:agg_sum": "dbsize",
    "request_policy:all_shards response_policy:agg_min": "wait waitaof",
    "request_policy:all_shards response_policy:agg_logical_and": "script|exists",
    "request_policy:all_shards response_policy:all_succeeded": "flushall flushdb memory|purge ping",
    "request_policy:all_shards nondeterministic_output_order": "keys",
    "request_policy:all_shards response_policy:special nondeterministic_output": "randomkey",
    "nondeterministic_output request_policy:all_shards response_policy:special": """
        info memory|doctor memory|malloc-stats memory|stats""",
    "nondeterministic_output request_policy:special response_policy:special": "scan",
    "request_policy:multi_shard": "mget",
    "request_policy:multi_shard response_policy:agg_sum": "del exists tdrop touch unlink",
    "request_policy:multi_shard response_policy:all_succeeded": "mset msetex",
}
# the tips of a command by its name, as in "config|set"
TIPS: Final = {name: tuple(tips.split()) for tips, names in _COMMANDS.items() for name in names.split()}
