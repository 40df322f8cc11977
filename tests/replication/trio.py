"""Three servers that many tests share, rearranged for each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.replication.cluster import Cluster, Node, cluster, in_sync, wait_until


class Trio:
    """Three servers: ``a`` leads, ``b`` follows it through ``b_link``, ``c`` follows ``b`` (a chain) or ``a`` (a star).

    The names follow the roles; arrange() restores the roles.
    """

    def __init__(self, made: Cluster) -> None:
        self.cluster = made
        # A busy machine must not end links: tests count how replicas came back.
        nodes = [made.node(checkpoint_size="1mb", stream_node_max_entries=64, repl_timeout=60) for _ in range(3)]
        self.a, self.b, self.c = nodes
        self.b_link = made.proxy(self.a)
        self.c_link = made.proxy(self.b)  # between c and the server that it follows

    @property
    def nodes(self) -> tuple[Node, Node, Node]:
        return self.a, self.b, self.c

    def arrange(self, chain: bool) -> None:
        """Make all three run, empty, in the given arrangement and in sync."""
        for node in self.nodes:
            node.start()
        self.a.lead()
        for proxy, target in ((self.b_link, self.a), (self.c_link, self.b if chain else self.a)):
            proxy.calm()
            if proxy.target != target.port:
                proxy.target = target.port
                proxy.cut()
        self.a("CONFIG", "SET", "repl-backlog-size", "64mb")
        self.b.follow(self.b_link.port)
        self.c.follow(self.c_link.port)
        self.a("FLUSHALL")
        wait_until(lambda: in_sync(self.a, self.b, self.c), "the trio is in sync")

    def promoted(self) -> None:
        """b has become the leader: swap the names a and b."""
        self.a, self.b = self.b, self.a


class Trios:
    """Lends the same trio to one test after another; after a failure the next test gets a new one."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._trio: Trio | None = None

    @contextlib.contextmanager
    def lend(self, chain: bool = True) -> Iterator[Trio]:
        if self._trio is None:
            self._trio = Trio(self._stack.enter_context(cluster()))
        try:
            self._trio.arrange(chain)
            yield self._trio
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._trio = None
        self._stack.close()
