"""A process that holds a lease and, if it can, a claim: for tests that stop or kill it.

    python -m tests.tidelog.coordination.holder URL OWNER TTL

Prints ``held`` once it has both. Then, for each line on its standard input, prints what it believes: ``claim.held``,
the lease's epoch, the claim's epoch; before ``burn`` it computes for three ttls without a pause.
"""

from __future__ import annotations

import sys

from tidelog.client.client import Client
from tidelog.client.steps import run
from tidelog.coordination import Keeper, Lease
from tidelog.coordination.claims import take
from tidelog.coordination.lease import now
from tidelog.transport.access import Access


def main() -> None:
    url, owner, ttl = sys.argv[1], sys.argv[2], float(sys.argv[3])
    lease = Lease(f"lease:{owner}", owner, ttl, "epoch")
    with Keeper(Access((url,)), lease) as keeper, Client(url) as client:
        assert keeper.wait(30)
        (claim,) = run(client, take(lease, [("claim:0", 0)])).claims
        print("held", flush=True)
        for line in sys.stdin:
            if line.strip() == "burn":
                burn(ttl * 3)
            print(claim.held, lease.epoch, claim.epoch, flush=True)


def burn(seconds: float) -> None:
    """Compute, and never wait."""
    end = now() + seconds
    number = 1
    while now() < end:
        number = number * 3 % 1_000_003


if __name__ == "__main__":
    main()
