"""``send_many`` over two groups of a cluster: ``python -m benchmarks.clustersend [--rounds R] [--records N]``.

The same records are sent to a topic on one group and to a topic on two groups, in turns. The sender is niced, so that
the servers have the cores. The table has the CPU time of the servers per record, of the busiest one and of all, and the
records per second. The CPU time of the busiest server limits how much a cluster can take: with one group on each core,
the rate grows by the inverse of its ratio. The topics have names whose partitions are distributed evenly; those of
other names may not be, such as 12 and 4 of 16.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec

from benchmarks.clustermode import assign, ready
from commands.slots import SLOTS, slot_of
from tidelog.testing import Server, running_server
from tidelog.topics import Topic

PARTITIONS = 16


class Reading(msgspec.Struct):
    id: int
    place: int
    city: str
    item: str
    price: float


def even_names() -> Iterator[str]:
    """Yield names of topics of which each half of the slots has half of the partitions."""
    for number in itertools.count():
        name = f"readings{number}"
        if sum(slot_of(f"{name}:{at}".encode()) < SLOTS // 2 for at in range(PARTITIONS)) == PARTITIONS // 2:
            yield name


def cluster(stack: ExitStack, groups: int) -> list[Server]:
    """Start a cluster of groups of one server each, which share the slots."""
    top = stack.enter_context(tempfile.TemporaryDirectory())
    options = {"coordinator": f"file://{top}/coordinator", "min-in-sync": "1", "cluster-enabled": "yes"}
    servers = [
        ready(stack.enter_context(running_server(appendfsync="everysec", group=str(at + 1), **options)))
        for at in range(groups)
    ]
    bounds = [SLOTS * at // groups for at in range(groups + 1)]
    for at in range(1, groups):
        assign(servers[0], f"{bounds[at]}-{bounds[at + 1] - 1}", str(at + 1))
    return servers


def cpu(server: Server) -> float:
    """Return the CPU time of a server's main thread, in seconds."""
    return int(Path(f"/proc/{server.pid}/task/{server.pid}/schedstat").read_text().split()[0]) / 1e9


def measured(servers: list[Server], name: str, records: list[Reading]) -> tuple[float, float, float]:
    """Return the CPU time per record in us, of the busiest server and of all; and the records per second."""
    url = "redis://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)
    topic: Topic[Reading] = Topic(name, Reading, partition_by="id", partitions=PARTITIONS, url=url)
    topic.sync.ready()
    before, began = [cpu(server) for server in servers], time.perf_counter()
    topic.sync.send_many(records)
    seconds = time.perf_counter() - began
    used = [(cpu(server) - start) / len(records) * 1e6 for server, start in zip(servers, before, strict=True)]
    topic.sync.close()
    return max(used), sum(used), len(records) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=200_000)
    given = parser.parse_args()
    records = [Reading(number, number % 7, "Oslo", "tea", 2.5) for number in range(given.records)]
    with ExitStack() as stack:
        sides = [cluster(stack, 1), cluster(stack, 2)]
        os.nice(15)
        names = itertools.islice(even_names(), given.rounds)
        found = [[measured(side, name, records) for side in sides] for name in names]
    for at, what in enumerate(("CPU of the busiest server, us/record", "CPU of all servers, us/record", "records/s")):
        one, two = (median(each[side][at] for each in found) for side in (0, 1))
        print(f"{what}: {one:,.2f} with one group, {two:,.2f} with two: {median(b[at] / a[at] for a, b in found):.2f}")


if __name__ == "__main__":
    main()
