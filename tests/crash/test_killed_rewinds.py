"""SIGKILL of an old leader at each step of deleting the end of its log, after its new leader has agreed.

A server process dies at the n-th call of what changes files, counted from the leader's agreement on. The next start has
the old data or that of the point where the histories diverged, and continues without a copy in both cases.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sys
from pathlib import Path

import pytest
import redis

from tests.killpoints import ROOT
from tests.replication.cluster import Cluster, Node, assert_same, cluster, new_port, wait_until

MINUTES = float(os.environ.get("TIDELOG_LONG") or 0)
FEW = 2  # points between the first and the last, without TIDELOG_LONG
SEED = 30

# Starts a server that dies at that call, or at the last one (-1). Says how many calls there were if it gets to the end.
PROGRAM = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from _tidelog_server import main
from persistence import directory, history, journal, rewind
from persistence.log import Log
from respserver.roles.link import LeaderLink
from tests.killpoints import Calls
calls = Calls(
    (journal.Journal, "write"), (journal.Journal, "rewind"), (journal.Journal, "close"), (rewind, "create"),
    (Path, "rename"), (Path, "replace"), (directory, "sync"), (os, "fsync"), (Log, "recover"),
    (history.History, "save"),
)
calls.fatal, calls.counting = int(sys.argv.pop(1)), False
rewound, continued = LeaderLink.rewound, LeaderLink.continued

async def counting(link, offset):
    calls.counting = True
    calls.point()
    await rewound(link, offset)
    calls.point()

def ending(link, replid, leader):
    continued(link, replid, leader)
    if calls.fatal < 0:
        calls.die()
    calls.counting = False
    print("points", calls.count, flush=True)

LeaderLink.rewound, LeaderLink.continued = counting, ending
sys.exit(main())
"""


class Rejoining:
    """A new leader, and the directory of the old one, which was killed after it had written more."""

    def __init__(self, made: Cluster) -> None:
        self.made = made
        old = made.node(appendfsync="always")
        for number in range(60):
            old("XADD", "x", "*", "f", number)
        old("SAVE")
        for number in range(60):
            old("XADD", "x", "*", "f", number)
        self.new = made.node(of=old.port)
        assert_same(old, self.new)
        self.rewound = old.offset, old.digest()
        self.new.lead()
        for number in range(60):
            old("XADD", "x", "*", "lost", number)
        self.whole = old.offset, old.digest()
        old.kill()
        for number in range(90):
            self.new("XADD", "x", "*", "new", number)
        self.config = {**old.config, "replicaof": f"127.0.0.1 {new_port()}"}  # nobody listens there
        self.directory = made.top / "old"
        self.template = Path(shutil.copytree(old.directory, made.top / "template"))

    def killed_at(self, call: int) -> int:
        """Let an old leader follow the new one, and die at that call. Returns 0, or the number of calls if it lives."""
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.copytree(self.template, self.directory)
        old = Node(self.directory, dict(self.config), [sys.executable, "-c", PROGRAM, str(call)])
        self.made.nodes.append(old)
        old.start()
        with contextlib.suppress(redis.ConnectionError):
            old.follow(self.new.port)
        wait_until(lambda: not old.running or old.logged("points "), "it dies, or it has followed")
        alive = [int(line.split()[1]) for line in old.output if line.startswith("points ")]
        old.kill()
        return alive[0] if alive else 0

    def start_again(self) -> tuple[int, str]:
        """Start what was killed, and let it follow. Returns log offset and digest of the start."""
        old = Node(self.directory, dict(self.config), self.made.command())
        self.made.nodes.append(old)
        old.start()
        found = old.offset, old.digest()
        copies = self.new.syncs[0]
        old.follow(self.new.port)
        assert_same(self.new, old)
        assert self.new.syncs[0] == copies
        old.kill()
        return found


@pytest.mark.interpreted
@pytest.mark.timeout(max(300.0, MINUTES * 60))
def test_killed_at_each_step() -> None:
    with cluster() as made:
        rejoining = Rejoining(made)
        calls = rejoining.killed_at(0)
        assert calls > 20, "hardly any points: the test shows too little"
        inner = range(2, calls - 2)  # the journal's thread may make some calls more or less
        seen = []
        for call in (1, *(inner if MINUTES else sorted(random.Random(SEED).sample(inner, FEW))), -1):
            assert not rejoining.killed_at(call), f"the server did not get to call {call}"
            found = rejoining.start_again()
            assert found in (rejoining.whole, rejoining.rewound), f"killed at call {call}"
            seen.append(found)
        assert seen[0] == rejoining.whole
        assert seen[-1] == rejoining.rewound
        assert seen == sorted(seen, reverse=True), "it was rewound, and then it was not"
