"""Subcommands of Redis that tidelog refuses with the reason and a remedy, instead of not knowing them."""

from __future__ import annotations

from typing import Final

_ALL_SLOTS: Final = "the leader has all 16384 slots, and they can't be assigned or moved"
_EPOCH: Final = "the epoch is that of the server group, which increases with each new leader"

# the reason and the remedy by the name of the subcommand, as in "cluster|meet"
REFUSED: Final = {
    **dict.fromkeys(
        [
            f"cluster|{name}"
            for name in (
                "addslots", "addslotsrange", "cancelslotmigrations", "delslots", "delslotsrange", "flushslots",
                "getslotmigrations", "migrateslots", "migration", "setslot", "syncslots",
            )
        ],
        _ALL_SLOTS,
    ),
    "cluster|bumpepoch": _EPOCH,
    "cluster|set-config-epoch": _EPOCH,
    "cluster|failover": "send FAILOVER to the leader, or run tidelog group failover",
    "cluster|forget": "members without a connection are not listed; tidelog group remove removes one from its group",
    "cluster|meet": "start the other server with replicaof, or as a member of the same server group",
    "cluster|replicate": "send REPLICAOF host port, or start the server as a member of a server group",
    "cluster|reset": "send REPLICAOF NO ONE to make this server a leader, and FLUSHALL to delete the keys",
    "cluster|saveconfig": "the node ID is stored in the data directory, and CONFIG REWRITE saves the role",
    "cluster|slot-stats": "there are no statistics by slot; CLUSTER COUNTKEYSINSLOT returns the number of keys",
}  # fmt: skip


def refusal(container: str, subcommand: str) -> str:
    """Return the error line for a subcommand; "" if it is none that is refused."""
    reason = REFUSED.get(f"{container.lower()}|{subcommand.lower()}")
    return f"ERR {container.upper()} {subcommand.upper()} is not supported: {reason}" if reason else ""
