"""Random commands get the same replies from a server that frees everything and from one without tiering.

A replica that frees its own nodes has the same entries.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.respserver.tiering.test_freeing import empty_cache
from tests.respserver.tiering.test_tiering import fields, tiered
from tests.waiting import eventually
from tests.wire.rawclient import Raw
from tidelog.testing import Server, running_server

Words = tuple[str, ...]

READS = ("XRANGE", "XREVRANGE", "XREAD", "TRANGE", "TCOUNT", "TSEEK", "XINFO", "XLEN")
SIZES = (b"radix-tree-keys", b"radix-tree-nodes")  # depend on when nodes were sealed


class Program:
    """Random commands for two streams. Times do not matter for their replies."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._last = {"a": 0, "b": 0}

    def _id(self, key: str) -> str:
        return f"{self.random.randrange(self._last[key] + 3)}-0"

    def command(self) -> Words:
        pick = self.random.choice
        key, group, consumer = pick("ab"), pick("gh"), pick("cd")
        one, other = self._id(key), self._id(key)
        count = str(pick((1, 10, 50, 300)))
        few = str(self.random.randrange(40, 300))
        kind = self.random.randrange(100)
        if kind < 40:
            self._last[key] += pick((1, 1, 1, 2, 5))
            limit = ["MAXLEN", pick("=~"), few] if kind < 3 else ["MINID", pick("=~"), one] if kind < 5 else []
            text = self.random.randbytes(pick((40, 60, 60, 300))).hex()
            return "XADD", key, *limit, f"{self._last[key]}-0", "n", str(self._last[key]), "text", text
        many = [self._id(key) for _ in range(5)]
        return pick([
            ("XTRIM", key, "MAXLEN", pick("=~"), few), ("XTRIM", key, "MINID", pick("=~"), one),
            ("TAPPEV", key, "COUNT", few), ("XDEL", key, one), ("XDEL", key, *many),
            ("XDELEX", key, pick(("KEEPREF", "DELREF", "ACKED")), "IDS", "5", *many),
            ("XRANGE", key, one, other, "COUNT", count), ("XRANGE", key, "-", "+"), ("XRANGE", key, one, "+"),
            ("XREVRANGE", key, one, other, "COUNT", count), ("XREVRANGE", key, "+", one),
            ("TRANGE", key, one.replace("-", "."), other.replace("-", "."), "COUNT", count),
            ("XREAD", "COUNT", count, "STREAMS", "a", "b", self._id("a"), self._id("b")),
            ("TCOUNT", key, one, other), ("TSEEK", key, one, str(self.random.randrange(-50, 50))),
            ("XINFO", "STREAM", key), ("XINFO", "GROUPS", key), ("XLEN", key),
            ("XGROUP", "CREATE", key, group, pick((one, "0", "$"))), ("XGROUP", "SETID", key, group, one),
            *[("XREADGROUP", "GROUP", group, consumer, "COUNT", count, "STREAMS", key, start)
              for start in (">", ">", ">", "0", one)],
            ("XACK", key, group, *many), ("XCLAIM", key, group, consumer, "0", *many),
            ("XAUTOCLAIM", key, group, consumer, "0", one, "COUNT", "20"),
        ])  # fmt: skip

    def commands(self) -> list[Words]:
        """Return a command, or the commands of a transaction, which reads first."""
        if self.random.randrange(12):
            return [self.command()]
        some = [self.command() for _ in range(3)]
        reads = [words for words in some if words[0] in READS]
        return [("MULTI",), *reads, *[words for words in some if words[0] == "XADD" and len(words) == 7], ("EXEC",)]


def shown(reply: Any) -> Any:
    if isinstance(reply, list):
        return [None if at and reply[at - 1] in SIZES else shown(item) for at, item in enumerate(reply)]
    return repr(reply)


def save(servers: tuple[Server, Server], clients: tuple[Raw, Raw]) -> None:
    """Write checkpoints, and wait until the nodes that can be freed are freed."""
    for client in clients:
        assert client("SAVE") == b"OK"
    passes = int(fields(clients[0])["tier_passes"]) + 2
    eventually(lambda: int(fields(clients[0])["tier_passes"]) >= passes, f"a pass failed: {fields(clients[0])}")
    empty_cache(servers[0])


def compare(replica: Server, client: Raw, restarted: bool) -> int:
    """Compare the streams of a replica, whose nodes were freed, with those of another server. Return their number."""
    with Raw(replica.port) as reader:
        for key in ("a", "b"):
            last = client("XINFO", "STREAM", key)[7]
            eventually(lambda key=key, last=last: reader("XINFO", "STREAM", key)[7] == last)  # type: ignore[misc]
        assert reader("SAVE") == b"OK"
        passes = int(fields(reader)["tier_passes"]) + 2
        eventually(lambda: int(fields(reader)["tier_passes"]) >= passes, f"a pass failed: {fields(reader)}")
        empty_cache(replica)
        freed = int(fields(reader)["tier_freed_nodes"])
    if restarted:
        replica.kill()
        replica.start()
    with Raw(replica.port) as reader:
        for key in ("a", "b"):
            theirs = client("XRANGE", key, "-", "+")
            eventually(lambda key=key, theirs=theirs: reader("XRANGE", key, "-", "+") == theirs)  # type: ignore[misc]
    return freed


LONG = (pytest.mark.long, pytest.mark.timeout(600))


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=LONG), pytest.param(3, marks=LONG)])
def test_replies_are_the_same(tmp_path: Path, seed: int) -> None:
    program = Program(seed)
    options: dict[str, Any] = {"save": "", "node_cache_size": "0"}
    with tiered(tmp_path, tier_free="yes", **options) as one, \
            tiered(tmp_path, tier_free="yes", replicaof=f"{one.host} {one.port}", **options) as replica, \
            running_server(stream_node_max_entries=10, **options) as other:  # fmt: skip
        servers = one, other
        clients = Raw(one.port), Raw(other.port)
        freed = fetched = replica_freed = 0
        for step in range(400 if seed == 1 else 3000):
            for words in program.commands():
                theirs, ours = (shown(client(*words)) for client in reversed(clients))
                assert ours == theirs, (step, words[:6])
            if program.random.randrange(15) == 0:
                empty_cache(one)
            if step % 200 == 199:
                save(servers, clients)
                replica_freed += compare(replica, clients[1], restarted=step % 800 == 799)
                found = fields(clients[0])
                freed, fetched = freed + int(found["tier_freed_nodes"]), fetched + int(found["tier_fetched_nodes"])
                if step % 400 == 399:  # both, since a start seals nodes at other places
                    for client in clients:
                        client.close()
                    for server in servers:
                        server.kill()
                        server.start()
                    clients = Raw(one.port), Raw(other.port)
        for client in clients:
            client.close()
        assert freed > 10
        assert replica_freed > 10
        assert fetched > 10
