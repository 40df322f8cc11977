"""The table of the rules of server groups that are broken on purpose, which the simulation of a group must detect.

A mutation is a function in ``replymutations``, ``rejoinmutations`` or ``delaymutations`` that returns the patches of
one broken rule, a line here, and a row in docs/simulation.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from tests.simulation import delaymutations as delays
from tests.simulation import rejoinmutations as rejoin
from tests.simulation import replymutations as replies
from tests.simulation.groups import GroupCase
from tests.simulation.world import Patch


@dataclass(frozen=True)
class GroupMutation:
    """As ``mutations.Mutation``. ``report``: a part of what is reported. ``quick``: it runs in each test run, others in
    long ones."""

    patches: Callable[[], list[Patch]]
    case: GroupCase
    report: str = ""
    quick: bool = False
    seeds: int = 200

    def tried(self) -> Iterator[GroupCase]:
        for seed in (self.case.seed, *range(self.seeds)):
            yield replace(self.case, seed=seed)


def _case(seed: int, *faults: str, **options: Any) -> GroupCase:
    return GroupCase(seed, faults, **{"seconds": 4.0, **options})


# The set has two members, and shrinks to one.
_PAIR: Final = {"members": 2, "min_in_sync": 1}
_TOLD: Final = {"works": ("write", "write", "listen", "listen", "listen", "read")}
_BLOCKED: Final = {"works": ("write", "write", "block", "block", "block", "read")}
_PLAIN: Final = {"works": ("write", "read", "read")}
_ROLES: Final = {"works": ("write", *5 * ("read",)), "at_once": 3}
_DELAYS: Final = {"works": ("write", "delay", "delay", "due", "due", "due")}
_WRITERS: Final = {"works": ("write", "write", "write", "read")}
GROUP_MUTATIONS: dict[str, GroupMutation] = {
    # acknowledgements and withheld replies
    "acknowledged before the sync": GroupMutation(
        replies.acknowledged_before_sync, _case(1, "blackout"), report="lacks the entry", quick=True
    ),
    "leader does not sync": GroupMutation(
        replies.leader_does_not_sync, _case(2, "power", **_PAIR), report="lacks the entry", quick=True
    ),
    "a sent batch counts": GroupMutation(
        replies.sent_counts, _case(0, "isolate", "kill"), report="is acknowledged, and on 1 members", quick=True
    ),
    "released before confirmation": GroupMutation(
        replies.released_before_confirmation,
        _case(0, "isolate"),
        report="is acknowledged, and on 1 members",
        quick=True,
    ),
    "reads do not wait": GroupMutation(
        replies.reads_do_not_wait, _case(1, "isolate", **_PLAIN), report="any more, on the same connection", quick=True
    ),
    "blocked reads do not wait": GroupMutation(
        replies.blocked_reads_do_not_wait,
        _case(3, "isolate", **_BLOCKED),
        report="a client that reads on from",
        quick=True,
    ),
    "messages do not wait": GroupMutation(
        replies.messages_do_not_wait, _case(1, "isolate", **_TOLD), report="acknowledged or seen, and lost", quick=True
    ),
    "message before its changes": GroupMutation(
        replies.message_before_its_changes, _case(0, "failover", **_TOLD), report="which it does not have", quick=True
    ),
    "replica shows what is not confirmed": GroupMutation(
        replies.replica_shows_unconfirmed,
        _case(72, "diverge", "one_way", "slow", **_PLAIN),
        report="which were acknowledged or seen before",
        quick=True,
    ),
    "withheld replies outlive the role": GroupMutation(
        replies.withheld_replies_outlive_the_role,
        _case(1, "diverge", "one_way", **_PLAIN),
        report="any more, on the same connection",
        quick=True,
    ),
    # the in-sync set
    "min-in-sync is ignored": GroupMutation(
        replies.min_in_sync_is_ignored,
        _case(0, "isolate", **_PLAIN),
        report="is acknowledged, and on 1 members",
        quick=True,
    ),
    "shrinks after the release": GroupMutation(
        replies.shrinks_after_release,
        _case(0, "isolate", "diverge", min_in_sync=1, **_PLAIN),
        report="lacks the entry",
        quick=True,
    ),
    "silent member stays": GroupMutation(
        replies.silent_member_stays,
        _case(4, "gone", at_once=1, **_PLAIN),
        report="is gone, and nothing is acknowledged",
        quick=True,
    ),
    "joining does not count": GroupMutation(
        replies.joining_does_not_count, _case(1, "lost_swap", **_PAIR, **_PLAIN), report="lacks the entry", quick=True
    ),
    "lost reply is a failure": GroupMutation(
        replies.lost_reply_is_a_failure, _case(1, "lost_swap", **_PAIR, **_PLAIN), report="lacks the entry", quick=True
    ),
    "joins before it has everything": GroupMutation(
        replies.joins_before_it_has_everything,
        _case(18, "pause", "partition", at_once=3, **_PLAIN),
        report="lacks the entry",
        quick=True,
    ),
    "copy in the set": GroupMutation(
        replies.copy_in_the_set,
        _case(0, "distrust", "lost_replies", **_PLAIN),
        report="is in the in-sync set, and receives a copy",
        quick=True,
    ),
    # the lease
    "lease not checked": GroupMutation(
        replies.lease_not_checked,
        _case(3, "deserted", **_PLAIN),
        report="which were acknowledged or seen before",
        quick=True,
    ),
    "renewed while stuck": GroupMutation(
        replies.renewed_while_stuck,
        _case(1, "stuck", **_PLAIN),
        report="still leads, though its event loop is stuck",
        quick=True,
    ),
    "lease without margin": GroupMutation(
        replies.lease_without_margin, _case(0, "cut_off", drift=0.02, **_PLAIN), report="has ended, and", quick=True
    ),
    "lost lease is not described": GroupMutation(
        replies.lost_lease_is_not_described, _case(9, "cut_off", **_ROLES), report="Bug while running ROLE", quick=True
    ),
    # elections and handovers
    "outsider is elected": GroupMutation(
        rejoin.outsider_is_elected,
        _case(9, "partition", "pause", seconds=8.0, **_PAIR, **_PLAIN),
        report="and the set was",
        quick=True,
    ),
    "epoch stays": GroupMutation(
        rejoin.epoch_stays,
        _case(0, "isolate", "kill", **_PLAIN),
        report="leads in epoch 1, in which m1 led",
        quick=True,
    ),
    "old leader stays in the set": GroupMutation(
        rejoin.old_leader_stays_in_set, _case(0, "isolate", "kill", **_PLAIN), report="did not consent", quick=True
    ),
    "keeps its link": GroupMutation(
        rejoin.keeps_its_link,
        _case(0, "isolate", "kill", "failover", **_PLAIN),
        report="is in the in-sync set, and receives a copy",
        quick=True,
    ),
    "hands over aloud": GroupMutation(
        rejoin.hands_over_aloud, _case(1, "failover", **_PLAIN), report="and is not silent", quick=True
    ),
    "shortest log wins": GroupMutation(
        rejoin.shortest_log_wins,
        _case(9, "kill", "partition", "diverge", at_once=3, **_WRITERS),
        report="takes the lead with a log of",
        quick=True,
    ),
    "hands over too early": GroupMutation(
        rejoin.hands_over_too_early,
        _case(3, "failover", **_WRITERS),
        report="which lacks a part of its log",
        quick=True,
    ),
    # rejoining
    "history keeps its ID": GroupMutation(
        rejoin.history_keeps_its_id, _case(9, "diverge", **_PLAIN), report="contents differ at log offset", quick=True
    ),
    "rewinds too little": GroupMutation(
        rejoin.rewinds_too_little,
        _case(0, "diverge", **_PLAIN),
        report="nothing is acknowledged although no fault happens any more",
    ),
    "rewinds under its store": GroupMutation(
        rejoin.rewinds_under_its_store, _case(2, "diverge", "checkpoint", **_PLAIN), report="does not run", quick=True
    ),
    "wrong nodes are reused": GroupMutation(
        rejoin.unequal_nodes_are_reused,
        _case(0, "rival", at_once=1, **_PLAIN),
        report="contents differ",
        quick=True,
    ),
    "rewinds too far": GroupMutation(
        rejoin.rewinds_too_far,
        _case(3, "diverge", "failover", at_once=1, **_WRITERS),
        report="deletes entries that were acknowledged",
        quick=True,
    ),
    # delayed entries
    "delivered again": GroupMutation(
        delays.delivered_again, _case(1, "failover", "kill", **_DELAYS), report="an entry is there twice", quick=True
    ),
    "delivery shown early": GroupMutation(
        delays.delivery_shown_early, _case(2, "isolate", "diverge", **_DELAYS), report="the ID of b'c", quick=True
    ),
}
